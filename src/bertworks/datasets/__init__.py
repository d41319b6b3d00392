"""Labelled data: files and published datasets in, task examples out."""
