"""Modules after the pooling of a sentence-transformers model: a module's folder in, a function of vectors out.

N vectors, I input size, O output size.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from bertworks.errors import FolderError, show_value
from bertworks.models.sentence_files import read_settings
from bertworks.models.weight_files import WEIGHT_FILES, find_weights

Floats = npt.NDArray[np.float32]

_erf = np.vectorize(math.erf, otypes=[np.float32])


def _sigmoid(values: Floats) -> Floats:
    return ((1 + np.tanh(values / 2)) / 2).astype(np.float32)


_ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "Tanh": np.tanh,
    "Identity": lambda values: values,
    "ReLU": lambda values: np.maximum(values, 0),
    "GELU": lambda values: values * (1 + _erf(values / math.sqrt(2))) / 2,
    "SiLU": lambda values: values * _sigmoid(values),
    "Sigmoid": _sigmoid,
}


@dataclass(frozen=True, slots=True)
class VectorModule:
    """A module on vectors (N, I) -> (N, O). Its name has a hash of its weights: equal names are equal modules."""

    name: str
    input_size: int
    output_size: int
    apply: Callable[[Floats], Floats] = field(compare=False, repr=False)


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
    inputs = settings.get("module_input_name") or "sentence_embedding"
    if {inputs, settings.get("module_output_name") or inputs} != {"sentence_embedding"}:
        raise FolderError(f"{path}: a Dense module of other values than the sentence embedding is not supported")
    tensors = _read_tensors(folder)
    if "linear.weight" not in tensors or tensors["linear.weight"].ndim != 2:
        raise FolderError(f"{folder} has no matrix 'linear.weight'; copy the model's own files")
    weight, bias = tensors["linear.weight"], tensors.get("linear.bias")  # (O, I), (O,)
    residual = tensors.get("residual.weight")
    has_residual, activate = bool(settings.get("use_residual")), _ACTIVATIONS[name]

    def apply(vectors: Floats) -> Floats:
        result = activate(vectors @ weight.T + (0 if bias is None else bias))
        if not has_residual:
            return result
        return result + (vectors if residual is None else vectors @ residual.T)

    output_size, input_size = weight.shape
    return VectorModule(f"{folder.name} ({_digest(tensors, name, has_residual)})", input_size, output_size, apply)


def _read_tensors(folder: Path) -> dict[str, Floats]:
    file = find_weights(folder)
    if file is None:
        raise FolderError(f"{folder} has no weights; it needs one of {', '.join(WEIGHT_FILES)}")
    if file.suffix == ".safetensors" and (tensors := _read_float32(file)) is not None:
        return tensors
    from bertworks.models.weights import open_weights  # with PyTorch, which reads pickles and bf16

    return {name: entry.read().float().numpy() for name, entry in open_weights(file).items()}


def _read_float32(file: Path) -> dict[str, Floats] | None:
    """Return the tensors of a safetensors file; None if one is not fp32, or the file is damaged."""
    try:
        with safe_open(file, "np") as tensors:
            if any(tensors.get_slice(name).get_dtype() != "F32" for name in tensors.keys()):  # noqa: SIM118
                return None
            return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return None  # the reader of all files says why


def _digest(tensors: dict[str, Floats], activation: str, has_residual: bool) -> str:
    digest = hashlib.sha256(f"{activation} {has_residual}".encode())
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].tobytes())
    return digest.hexdigest()[:8]
