"""fp16 export: a loaded model in, a folder with fp16 weights out: half the size, for torch and transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from bertworks.disk import read_json, write_json
from bertworks.errors import FolderError
from bertworks.inference.model import LoadedModel
from bertworks.models.folder import read_folder
from bertworks.models.weights import write_weights


def write_half(model: LoadedModel, folder: Path) -> dict[str, Any]:
    """Write model.safetensors in fp16. It is loaded as fp32, so only the rounding of weights changes outputs."""
    tensors = read_folder(model.folder).tensors
    fp16_tensors: dict[str, torch.Tensor] = {}
    max_error = 0.0
    for name, values in tensors.items():
        fp16_tensors[name] = _round(model.folder, name, values) if values.is_floating_point() else values
        errors = (fp16_tensors[name].float() - values.float()).abs()
        max_error = max(max_error, float(errors.max()) if errors.numel() else 0.0)
    write_weights(folder / "model.safetensors", fp16_tensors)
    # Without it, transformers would compute in the dtype of the file, which few processors do fast and exactly.
    config = read_json(folder / "config.json", "a model folder")
    write_json(folder / "config.json", {**config, "dtype": "float32"})
    return {"precision": "fp16", "computed_in": "float32", "max_rounding_error": max_error}


def _round(folder: Path, name: str, values: torch.Tensor) -> torch.Tensor:
    if not values.isfinite().all():
        raise FolderError(f"{folder}: tensor '{name}' has values that are not finite; export an earlier checkpoint")
    rounded = values.half()
    if not rounded.isfinite().all():
        largest = float(values.abs().max())
        raise FolderError(
            f"{folder}: tensor '{name}' has the value {largest:.4g}, and fp16 has none above "
            f"{torch.finfo(torch.float16).max:,.0f}; keep this model in fp32"
        )
    return rounded
