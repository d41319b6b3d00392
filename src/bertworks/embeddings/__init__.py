"""Texts and a model in, vectors out: of whole texts, words or tokens, from any layers of its encoder."""
