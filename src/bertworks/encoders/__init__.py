"""A Batch in, an Encoded out: the encoders of BERT and related models, one file a family."""
