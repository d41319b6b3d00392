"""The loss of a batch: named parts, each a sum and a count, which the training loop adds up and divides once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class LossPart:
    """One part of a loss: the sum over its targets, their number, and how many were predicted correctly, if counted."""

    total: torch.Tensor
    count: int
    correct: int | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """The parts of a loss, and `value`: their scaled sum, to call backward on.

    The scale of a part is one over its count in the whole step, over all micro-batches and processes. So accumulation
    and more processes change nothing. `state` is the encoder state for sequences that continue those of the batch.
    """

    value: torch.Tensor
    parts: Mapping[str, LossPart]
    state: object | None = None
