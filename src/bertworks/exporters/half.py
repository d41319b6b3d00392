"""fp16 export: a loaded model in, a folder with fp16 weights out: half the size, for torch and transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from bertworks.inference.model import Model
from bertworks.models.folder import read_folder
from bertworks.models.weights import write_weights


def write_half(model: Model, folder: Path) -> dict[str, Any]:
    """Write model.safetensors in fp16. It is loaded as fp32, so only the rounding of weights changes outputs."""
    tensors = read_folder(model.folder).tensors
    fp16_tensors = {name: values.half() if values.is_floating_point() else values for name, values in tensors.items()}
    write_weights(folder / "model.safetensors", fp16_tensors)
    return {"precision": "fp16", "computed_in": str(torch.float32).removeprefix("torch.")}
