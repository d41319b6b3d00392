"""A learned sum of layers, as in ELMo: the hidden states of several layers in, their weighted sum out.

L layers, N tokens, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class WeightedLayers(nn.Module):
    """A learned weighted sum of layers: gamma * sum(softmax(weights) * layers), initialized to their mean."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(num_layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, layers: Sequence[torch.Tensor]) -> torch.Tensor:
        stacked = torch.stack(tuple(layers))  # (L, N, D)
        return self.gamma * torch.tensordot(torch.softmax(self.weights, 0), stacked, dims=1)  # (N, D)
