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

_MIN_NORM = 1e-12  # as in torch's normalize
_LAYER_NORM_EPS = 1e-5  # as in torch's LayerNorm

_erf = np.vectorize(math.erf, otypes=[np.float32])


def _sigmoid(values: Floats) -> Floats:
    return np.asarray((1 + np.tanh(values / 2)) / 2, dtype=np.float32)


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
    """A module on vectors (N, I) -> (N, O). Its name has a hash of its weights: equal names are equal modules.

    A module without sizes takes vectors of any size, and keeps it.
    """

    name: str
    input_size: int | None
    output_size: int | None
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
    check_sentence_module(folder, "Dense")
    tensors = _read_tensors(folder)
    if "linear.weight" not in tensors or tensors["linear.weight"].ndim != 2:
        raise FolderError(f"{folder} has no matrix 'linear.weight'; copy the model's own files")
    weight, bias = tensors["linear.weight"], tensors.get("linear.bias")  # (O, I), (O,)
    residual = tensors.get("residual.weight")  # (O, I)
    has_residual, activate = bool(settings.get("use_residual")), _ACTIVATIONS[name]
    output_size, input_size = weight.shape
    _check_shape(folder, "linear.bias", bias, (output_size,))
    if has_residual:
        _check_shape(folder, "residual.weight", residual, weight.shape)
        if residual is None and output_size != input_size:
            raise FolderError(
                f"{folder} has no 'residual.weight', which use_residual needs; copy the model's own files"
            )

    def apply(vectors: Floats) -> Floats:
        result = activate(vectors @ weight.T + (0 if bias is None else bias))
        if not has_residual:
            return result
        return result + (vectors if residual is None else vectors @ residual.T)

    return VectorModule(f"{folder.name} ({_digest(tensors, name, has_residual)})", input_size, output_size, apply)


def normalize(vectors: Floats) -> Floats:
    """Return vectors (N, D) of length 1."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), _MIN_NORM)


NORMALIZE = VectorModule("Normalize", None, None, normalize)


def read_layer_norm(folder: Path) -> VectorModule:
    """Read a LayerNorm module: mean 0 and variance 1, then a weight and a bias for each component."""
    tensors = _read_tensors(folder)
    if not {"norm.weight", "norm.bias"} <= set(tensors):
        raise FolderError(f"{folder} has no 'norm.weight' and 'norm.bias'; copy the model's own files")
    weight, bias = tensors["norm.weight"], tensors["norm.bias"]  # (I,)
    size = weight.size
    for name in ("norm.weight", "norm.bias"):
        _check_shape(folder, name, tensors[name], (size,))

    def apply(vectors: Floats) -> Floats:
        centered = vectors - vectors.mean(axis=1, keepdims=True)
        deviation = np.sqrt(np.square(centered).mean(axis=1, keepdims=True) + _LAYER_NORM_EPS)
        return centered / deviation * weight + bias

    return VectorModule(f"{folder.name} ({_digest(tensors, 'LayerNorm', False)})", size, size, apply)


def check_sentence_module(folder: Path, kind: str) -> None:
    """Refuse a module that reads or writes other values than the sentence embedding."""
    path = folder / "config.json"
    settings = read_settings(path)
    inputs = settings.get("module_input_name") or "sentence_embedding"
    if {inputs, settings.get("module_output_name") or inputs} != {"sentence_embedding"}:
        raise FolderError(f"{path}: a {kind} module of other values than the sentence embedding is not supported")


def _check_shape(folder: Path, name: str, tensor: Floats | None, shape: tuple[int, ...]) -> None:
    if tensor is not None and tensor.shape != shape:
        raise FolderError(
            f"{folder}: tensor '{name}' should have shape {shape}, but has {tensor.shape}; copy the model's own files"
        )


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
