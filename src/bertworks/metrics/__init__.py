"""Predictions and references in, scores out."""
