"""A model is a folder: reading and writing it, and fetching or importing those that others made."""
