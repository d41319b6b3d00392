"""A model folder in, a folder for another engine or of smaller numbers out, each with a certificate of parity."""
