"""Files that are what was written: recorded hashes in, the files that differ out."""
