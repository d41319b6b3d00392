"""The heads of tasks: an Encoded and its Batch in, outputs out; few new parameters, as in the paper.

B rows, U units, P places that are asked, N pieces, D width, C classes.
"""

from __future__ import annotations

import torch
from torch import nn

from bertworks.encoders.dropout import drop
from bertworks.encoders.encoded import Encoded
from bertworks.encoders.layers import Seeds
from bertworks.sampling.batch import Batch

# The number of the place where a head drops values; an encoder counts its own from 0.
_HEAD_PLACE = 10_000


class SummaryHead(nn.Module):
    """One product on the summary of each row: (B, C)."""

    def __init__(self, width: int, num_outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.score = nn.Linear(width, num_outputs)

    def places(self, batch: Batch) -> torch.Tensor:
        """None: the summary is enough."""
        return batch.ids.new_empty(0)

    def forward(self, encoded: Encoded, batch: Batch, seeds: Seeds | None = None) -> torch.Tensor:
        assert encoded.summary is not None
        return self.score(dropped(self, encoded.summary, seeds))


class PlaceHead(nn.Module):
    """One product on the last layer at the places that are asked: (P, C)."""

    def __init__(self, width: int, num_outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.score = nn.Linear(width, num_outputs)

    def places(self, batch: Batch) -> torch.Tensor | None:
        return batch.places

    def forward(self, encoded: Encoded, batch: Batch, seeds: Seeds | None = None) -> torch.Tensor:
        assert batch.places is not None
        return self.score(dropped(self, encoded.at(batch.places), seeds))


class SpanHead(nn.Module):
    """One product on every piece: does an answer begin, or end, there? (B, T, 2), minus infinity in padding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 2)

    def places(self, batch: Batch) -> None:
        """All of them."""

    def forward(self, encoded: Encoded, batch: Batch, seeds: Seeds | None = None) -> torch.Tensor:
        rows, width = encoded.layout.shape
        scores = self.score(encoded.last)  # (N, 2)
        if encoded.layout.index is not None:
            spread = scores.new_full((rows * width, 2), float("-inf"))
            return spread.index_copy(0, encoded.layout.index, scores).view(rows, width, 2)
        padding = torch.arange(width, device=scores.device) >= encoded.layout.lengths[:, None]  # (B, T)
        return scores.view(rows, width, 2).masked_fill(padding[..., None], float("-inf"))


def dropped(head: nn.Module, values: torch.Tensor, seeds: Seeds | None) -> torch.Tensor:
    """Return the values with some dropped at the head's rate, in training mode only."""
    seed = seeds.of(_HEAD_PLACE) if seeds is not None and head.training else None
    return drop(values, seed, float(head.dropout))  # type: ignore[arg-type]


def mean_by_group(values: torch.Tensor, groups: torch.Tensor | None) -> torch.Tensor:
    """Return (U, C): the mean of the rows (B, C) of each group."""
    if groups is None:
        return values
    num_groups = int(groups.max()) + 1
    sums = values.new_zeros(num_groups, values.shape[1]).index_add(0, groups, values)
    counts = torch.bincount(groups, minlength=num_groups)
    return sums / counts[:, None]
