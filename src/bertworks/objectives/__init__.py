"""An Encoded in, a Loss out: the pretraining objectives."""
