"""Text in, tokens out: tokenizers, and the training of vocabularies."""
