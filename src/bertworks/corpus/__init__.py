"""Build and open a corpus folder: Documents in, shards of text and tokens out."""
