"""What leaves an objective: named parts, each a sum and a count, which the loop adds up and divides once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class LossPart:
    """One part of a loss: the sum over its answers, how many there were, and how many were right (if anyone asked)."""

    total: torch.Tensor
    count: int
    correct: int | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """The parts of a loss, and `value`: their scaled sum, from which the gradients come.

    The scale of a part is one over its count in the whole step, over all micro-batches and processes. So splitting a
    step in more micro-batches or processes changes nothing. `state` is what the rows leave for those that go on behind
    them, if any do.
    """

    value: torch.Tensor
    parts: Mapping[str, LossPart]
    state: object | None = None
