"""Texts and a model in, vectors out: of whole texts, words or pieces, from any layers of its encoder."""
