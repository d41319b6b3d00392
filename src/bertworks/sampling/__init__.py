"""A corpus folder in, Examples and Batches out."""
