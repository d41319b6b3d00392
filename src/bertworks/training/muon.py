"""Muon for the weight matrices of layers: their gradients and a learning rate in, orthogonalized updates out.

Jordan et al. (2024); an update has the size of one of AdamW's (Liu et al., 2025), so that both take the same learning
rate. Embeddings, heads, biases and norms stay with Adam.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch

from bertworks.encoders.precision import AUTO, DTYPES, resolve_precision
from bertworks.errors import FolderError

# Weights that stack several matrices: each of them is orthogonalized by itself.
_NUM_STACKED = {"query_key_value": 3, "key_value": 2}
_LAYER_WEIGHT = re.compile(r"(^|\.)layers\.\d+\..*\bweight$")
_MOMENTUM = "momentum_buffer"


def is_layer_matrix(name: str, parameter: torch.Tensor) -> bool:
    """Whether a parameter is a weight matrix of an encoder layer."""
    return parameter.ndim == 2 and _LAYER_WEIGHT.search(name) is not None


# The quintic Newton-Schulz iteration of Jordan et al., and their smallest norm.
_COEFFICIENTS, _NUM_ITERATIONS, _EPS = (3.4445, -4.775, 2.0315), 5, 1e-7
# The root mean square of an update relative to the learning rate: that of AdamW's (Liu et al.).
_UPDATE_RMS = 0.2


class LayerMuon:
    """Muon over named weight matrices. Its state is keyed by their names.

    torch's Muon always computes in bf16, which a processor without it emulates eighty times slower: there it is fp32.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor], momentum: float, weight_decay: float) -> None:
        self._parameters = dict(parameters)
        self._momentum, self._weight_decay = momentum, weight_decay
        self._buffers: dict[str, torch.Tensor] = {}
        device = next(iter(self._parameters.values())).device
        self._dtype = DTYPES[resolve_precision(AUTO, device)]

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Update the matrices that have gradients."""
        for name, values in self._parameters.items():
            if values.grad is None:
                continue
            if name not in self._buffers:
                self._buffers[name] = torch.zeros_like(values)
            tensors, num_stacked = (values, values.grad, self._buffers[name]), _num_stacked(name)
            for matrix, grad, buffer in zip(*(tensor.chunk(num_stacked) for tensor in tensors), strict=True):
                buffer.lerp_(grad, 1 - self._momentum)
                update = orthogonalize(grad.lerp(buffer, self._momentum), self._dtype)
                matrix.mul_(1 - learning_rate * self._weight_decay)
                matrix.add_(update, alpha=-learning_rate * (_UPDATE_RMS * math.sqrt(max(matrix.shape))))

    def state(self) -> dict[str, torch.Tensor]:
        """Return the momentum of each matrix as "momentum_buffer/NAME"; empty before the first step."""
        return {f"{_MOMENTUM}/{name}": buffer for name, buffer in self._buffers.items()}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore what `state` returned."""
        for name, values in self._parameters.items():
            self._buffers[name] = moment_of(tensors, f"{_MOMENTUM}/{name}", values)


def orthogonalize(matrix: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a matrix with the singular vectors of this one and singular values near 1, computed in `dtype`."""
    x = (matrix.T if matrix.shape[0] > matrix.shape[1] else matrix).to(dtype)  # (R, C), R <= C
    x = x / x.norm().clamp(min=_EPS)
    a, b, c = _COEFFICIENTS
    for _ in range(_NUM_ITERATIONS):
        gram = x @ x.T  # (R, R)
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def moment_of(tensors: Mapping[str, torch.Tensor], name: str, parameter: torch.Tensor) -> torch.Tensor:
    """Return a copy of the optimizer state of a parameter; refuse one that is missing or of another shape."""
    values = tensors.get(name)
    if values is None or values.shape != parameter.shape:
        problem = "no" if values is None else f"{tuple(values.shape)} instead of {tuple(parameter.shape)} as"
        raise FolderError(
            f"the checkpoint has {problem} optimizer state '{name}'; it belongs to another recipe: start a new run "
            f"with --output"
        )
    return values.to(parameter.device).clone()


def _num_stacked(name: str) -> int:
    return _NUM_STACKED.get(name.removesuffix(".weight").rpartition(".")[2], 1)
