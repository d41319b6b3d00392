"""An Encoded in, a Loss out: what a model is asked while it is pretrained."""
