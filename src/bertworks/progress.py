"""Progress of long work: what a run passes to a progress callback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` bytes or units of a stage; total is None where it is unknown (a pipe)."""

    stage: str
    done: int
    total: int | None
    unit: str


ProgressCallback = Callable[[Progress], None]
