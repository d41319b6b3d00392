"""Check raw text before training on it."""
