"""Export: a model folder in, a folder for another engine or precision out, with a certificate of parity."""
