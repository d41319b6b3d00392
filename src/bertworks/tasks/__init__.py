"""Labelled data in, Predictions out, and back: what a model is used for. Nothing here trains."""
