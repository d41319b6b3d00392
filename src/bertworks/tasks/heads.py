"""The heads of tasks: an Encoded and its Batch in, outputs out; few new parameters, as in the paper.

B rows, U units, P places that are asked, N pieces, D width, C classes.
"""

from __future__ import annotations

import torch
from torch import nn

from bertworks.encoders.dropout import dropout
from bertworks.encoders.encoded import Encoded
from bertworks.encoders.layers import DropoutSeeds
from bertworks.sampling.batch import Batch

# The number of the place where a head drops values; an encoder counts its own from 0.
_HEAD_DROPOUT_INDEX = 10_000


class PooledHead(nn.Module):
    """One product on the summary of each row: (B, C)."""

    def __init__(self, hidden_size: int, num_outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.score = nn.Linear(hidden_size, num_outputs)

    def positions(self, batch: Batch) -> torch.Tensor:
        """None: the summary is enough."""
        return batch.input_ids.new_empty(0)

    def forward(self, encoded: Encoded, batch: Batch, seeds: DropoutSeeds | None = None) -> torch.Tensor:
        assert encoded.pooled is not None
        return self.score(apply_dropout(self, encoded.pooled, seeds))


class PositionHead(nn.Module):
    """One product on the last layer at the places that are asked: (P, C)."""

    def __init__(self, hidden_size: int, num_outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.score = nn.Linear(hidden_size, num_outputs)

    def positions(self, batch: Batch) -> torch.Tensor | None:
        return batch.positions

    def forward(self, encoded: Encoded, batch: Batch, seeds: DropoutSeeds | None = None) -> torch.Tensor:
        assert batch.positions is not None
        return self.score(apply_dropout(self, encoded.gather(batch.positions), seeds))


class SpanHead(nn.Module):
    """One product on every piece: does an answer begin, or end, there? (B, T, 2), minus infinity in padding."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.score = nn.Linear(hidden_size, 2)

    def positions(self, batch: Batch) -> None:
        """All of them."""

    def forward(self, encoded: Encoded, batch: Batch, seeds: DropoutSeeds | None = None) -> torch.Tensor:
        rows, width = encoded.layout.shape
        scores = self.score(encoded.last_hidden_state)  # (N, 2)
        if encoded.layout.index is not None:
            spread = scores.new_full((rows * width, 2), float("-inf"))
            return spread.index_copy(0, encoded.layout.index, scores).view(rows, width, 2)
        padding = torch.arange(width, device=scores.device) >= encoded.layout.lengths[:, None]  # (B, T)
        return scores.view(rows, width, 2).masked_fill(padding[..., None], float("-inf"))


def apply_dropout(head: nn.Module, values: torch.Tensor, seeds: DropoutSeeds | None) -> torch.Tensor:
    """Return the values with some dropped at the head's rate, in training mode only."""
    seed = seeds.seed_for(_HEAD_DROPOUT_INDEX) if seeds is not None and head.training_settings else None
    return dropout(values, seed, float(head.dropout))  # type: ignore[arg-type]


def mean_by_group(values: torch.Tensor, groups: torch.Tensor | None) -> torch.Tensor:
    """Return (U, C): the mean of the rows (B, C) of each group."""
    if groups is None:
        return values
    num_groups = int(groups.max()) + 1
    sums = values.new_zeros(num_groups, values.shape[1]).index_add(0, groups, values)
    counts = torch.bincount(groups, minlength=num_groups)
    return sums / counts[:, None]
