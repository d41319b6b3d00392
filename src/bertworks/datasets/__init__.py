"""Labelled data: files and published sets in, task examples out."""
