"""Serving: model folders in, an HTTP API with continuous batching and a web page out."""
