"""A model in use: texts in, predictions, fillings, generated text and explanations out."""
