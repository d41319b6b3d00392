"""Documents in, pieces out."""
