"""Modules after the pooling of a sentence-transformers model: a module's folder in, a function of vectors out.

N vectors, I input size, O output size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812

from bertworks.errors import FolderError, show_value
from bertworks.models.sentence_files import read_settings
from bertworks.models.weights import READERS, StoredTensor, find_weights, open_weights

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Tanh": torch.tanh,
    "Identity": lambda values: values,
    "ReLU": F.relu,
    "GELU": F.gelu,
    "SiLU": F.silu,
    "Sigmoid": torch.sigmoid,
}


@dataclass(frozen=True, slots=True)
class VectorModule:
    """A module on vectors (N, I) -> (N, O). Its name has a hash of its weights: equal names are equal modules.

    A module without sizes takes vectors of any size, and keeps it.
    """

    name: str
    input_size: int | None
    output_size: int | None
    apply: Callable[[torch.Tensor], torch.Tensor] = field(compare=False, repr=False)


def read_dense(folder: Path) -> VectorModule:
    """Read a Dense module: a linear layer with an activation, and perhaps a residual connection."""
    path = folder / "config.json"
    settings = read_settings(path)
    name = str(settings.get("activation_function", "Tanh")).rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise FolderError(
            f"{path}: activation_function {show_value(settings['activation_function'])} is not supported; it must be "
            f"one of torch's {', '.join(_ACTIVATIONS)}"
        )
    check_sentence_module(folder, "Dense")
    tensors = _read_tensors(folder)
    if "linear.weight" not in tensors or tensors["linear.weight"].ndim != 2:
        raise FolderError(f"{folder} has no matrix 'linear.weight'; copy the model's own files")
    weight, bias = tensors["linear.weight"], tensors.get("linear.bias")  # (O, I), (O,)
    residual = tensors.get("residual.weight")
    has_residual, activate = bool(settings.get("use_residual")), _ACTIVATIONS[name]

    def apply(vectors: torch.Tensor) -> torch.Tensor:
        result = activate(F.linear(vectors, weight, bias))
        if not has_residual:
            return result
        return result + (vectors if residual is None else F.linear(vectors, residual))

    output_size, input_size = weight.shape
    return VectorModule(f"{folder.name} ({_digest(tensors, name, has_residual)})", input_size, output_size, apply)


NORMALIZE = VectorModule("Normalize", None, None, lambda vectors: F.normalize(vectors, dim=1))


def read_layer_norm(folder: Path) -> VectorModule:
    """Read a LayerNorm module: mean 0 and variance 1, then a weight and a bias for each component."""
    tensors = _read_tensors(folder)
    if not {"norm.weight", "norm.bias"} <= set(tensors):
        raise FolderError(f"{folder} has no 'norm.weight' and 'norm.bias'; copy the model's own files")
    weight, bias = tensors["norm.weight"], tensors["norm.bias"]  # (I,)
    (size,) = weight.shape

    def apply(vectors: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(vectors, (size,), weight, bias)

    return VectorModule(f"{folder.name} ({_digest(tensors, 'LayerNorm', False)})", size, size, apply)


def check_sentence_module(folder: Path, kind: str) -> None:
    """Refuse a module that reads or writes other values than the sentence embedding."""
    path = folder / "config.json"
    settings = read_settings(path)
    inputs = settings.get("module_input_name") or "sentence_embedding"
    if {inputs, settings.get("module_output_name") or inputs} != {"sentence_embedding"}:
        raise FolderError(f"{path}: a {kind} module of other values than the sentence embedding is not supported")


def _read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    file = find_weights(folder)
    if file is None:
        raise FolderError(f"{folder} has no weights; it needs one of {', '.join(READERS)}")
    entries: dict[str, StoredTensor] = open_weights(file)
    return {name: entry.read().float() for name, entry in entries.items()}


def _digest(tensors: dict[str, torch.Tensor], activation: str, has_residual: bool) -> str:
    digest = hashlib.sha256(f"{activation} {has_residual}".encode())
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:8]
