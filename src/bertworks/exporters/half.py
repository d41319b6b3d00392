"""A loaded model in, a folder with weights of half precision out: half the size, for torch and transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from bertworks.inference.model import Model
from bertworks.models.folder import read_folder
from bertworks.models.weights import write_weights


def write_half(model: Model, folder: Path) -> dict[str, Any]:
    """Write model.safetensors in 16 bits. It is read into 32 bits again, so only rounding changes an answer."""
    tensors = read_folder(model.folder).tensors
    halved = {name: values.half() if values.is_floating_point() else values for name, values in tensors.items()}
    write_weights(folder / "model.safetensors", halved)
    return {"precision": "fp16", "computed_in": str(torch.float32).removeprefix("torch.")}
