"""The file of a folder's weights: a folder in, the path out, without reading it."""

from __future__ import annotations

from pathlib import Path

# Safetensors first. An index names the files of weights that are split.
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


def find_weights(folder: Path) -> Path | None:
    """Return the weights file or its index; None if there is none."""
    return next((folder / name for name in WEIGHT_FILES if (folder / name).is_file()), None)
