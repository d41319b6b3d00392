"""Muon for the weight matrices of layers: their gradients and a learning rate in, orthogonalized updates out.

Jordan et al. (2024); an update has the size of one of AdamW's (Liu et al., 2025), so that both take the same learning
rate. Embeddings, heads, biases and norms stay with Adam.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from bertworks.errors import FolderError

# Weights that stack several matrices: each of them is orthogonalized by itself.
_NUM_STACKED = {"query_key_value": 3, "key_value": 2}
_LAYER_WEIGHT = re.compile(r"(^|\.)layers\.\d+\..*\bweight$")
_MOMENTUM = "momentum_buffer"


def is_layer_matrix(name: str, parameter: torch.Tensor) -> bool:
    """Whether a parameter is a weight matrix of an encoder layer."""
    return parameter.ndim == 2 and _LAYER_WEIGHT.search(name) is not None


class LayerMuon:
    """torch's Muon over named weight matrices. Its state is keyed by their names."""

    def __init__(self, parameters: Mapping[str, torch.Tensor], momentum: float, weight_decay: float) -> None:
        self._parameters = dict(parameters)
        # Views, so that updates of the parts are updates of the whole.
        self._parts = {name: values.detach().chunk(_num_stacked(name)) for name, values in parameters.items()}
        self._muon = torch.optim.Muon(
            [part for parts in self._parts.values() for part in parts],
            momentum=momentum,
            weight_decay=weight_decay,
            adjust_lr_fn="match_rms_adamw",
        )

    def step(self, learning_rate: float) -> None:
        """Update the matrices that have gradients."""
        for name, parts in self._parts.items():
            grad = self._parameters[name].grad
            grads = [None] * len(parts) if grad is None else grad.chunk(len(parts))
            for part, part_grad in zip(parts, grads, strict=True):
                part.grad = part_grad
        for group in self._muon.param_groups:
            group["lr"] = learning_rate
        self._muon.step()  # type: ignore[no-untyped-call]
        self._muon.zero_grad(set_to_none=True)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the momentum of each matrix as "momentum_buffer/NAME"; empty before the first step."""
        return {
            f"{_MOMENTUM}/{name}": torch.cat([self._muon.state[part][_MOMENTUM] for part in parts])
            for name, parts in self._parts.items()
            if parts[0] in self._muon.state
        }

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore what `state` returned."""
        for name, parts in self._parts.items():
            momentum = moment_of(tensors, f"{_MOMENTUM}/{name}", self._parameters[name])
            for part, values in zip(parts, momentum.chunk(len(parts)), strict=True):
                self._muon.state[part] = {_MOMENTUM: values.clone()}


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
