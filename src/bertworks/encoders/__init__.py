"""A Batch in, an Encoded out: BERT, and later its family."""
