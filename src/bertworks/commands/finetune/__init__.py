"""Fine-tune a pretrained model on labelled data."""
