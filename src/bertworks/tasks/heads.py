"""The heads of tasks: an Encoded and its Batch in, outputs out; a linear layer each, as in the paper.

B sequences, U units, P target positions, N tokens, D hidden size, C outputs.
"""

from __future__ import annotations

import torch
from torch import nn

from bertworks.encoders.dropout import dropout
from bertworks.encoders.encoded import Encoded
from bertworks.encoders.layers import DropoutSeeds
from bertworks.sampling.batch import Batch

# Index of the head's dropout; those of an encoder count from 0.
_HEAD_DROPOUT_INDEX = 10_000


class PooledHead(nn.Module):
    """A linear layer on the pooled output of each sequence: (B, C)."""

    def __init__(self, hidden_size: int, num_outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.score = nn.Linear(hidden_size, num_outputs)

    def positions(self, batch: Batch) -> torch.Tensor:
        """None of the last layer: it reads the pooled output only."""
        return batch.input_ids.new_empty(0)

    def forward(self, encoded: Encoded, batch: Batch, seeds: DropoutSeeds | None = None) -> torch.Tensor:
        assert encoded.pooled is not None
        return self.score(apply_dropout(self, encoded.pooled, seeds))


class PositionHead(nn.Module):
    """A linear layer on the last layer at the batch's target positions: (P, C)."""

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
    """A linear layer on every token, scoring it as start and as end of the answer: (B, T, 2), -inf in padding."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.score = nn.Linear(hidden_size, 2)

    def positions(self, batch: Batch) -> None:
        """All of them."""

    def forward(self, encoded: Encoded, batch: Batch, seeds: DropoutSeeds | None = None) -> torch.Tensor:
        num_sequences, length = encoded.layout.shape
        scores = self.score(encoded.last_hidden_state)  # (N, 2)
        if encoded.layout.index is not None:
            padded = scores.new_full((num_sequences * length, 2), float("-inf"))
            return padded.index_copy(0, encoded.layout.index, scores).view(num_sequences, length, 2)
        is_padding = torch.arange(length, device=scores.device) >= encoded.layout.lengths[:, None]  # (B, T)
        return scores.view(num_sequences, length, 2).masked_fill(is_padding[..., None], float("-inf"))


def apply_dropout(head: nn.Module, values: torch.Tensor, seeds: DropoutSeeds | None) -> torch.Tensor:
    """Apply the head's dropout, in training mode only."""
    seed = seeds.seed_for(_HEAD_DROPOUT_INDEX) if seeds is not None and head.training else None
    return dropout(values, seed, float(head.dropout))  # type: ignore[arg-type]


def mean_by_group(values: torch.Tensor, groups: torch.Tensor | None) -> torch.Tensor:
    """Return (U, C): the mean of the values (B, C) of the sequences of each unit."""
    if groups is None:
        return values
    num_groups = int(groups.max()) + 1
    sums = values.new_zeros(num_groups, values.shape[1]).index_add(0, groups, values)
    counts = torch.bincount(groups, minlength=num_groups)
    return sums / counts[:, None]
