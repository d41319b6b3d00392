"""Many texts in, what an encoder makes of them out, fast: batches by length, windows over long texts."""
