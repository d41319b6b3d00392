"""Model folders: reading and writing them, downloads from the hub, Hugging Face tensor names, TensorFlow 1."""
