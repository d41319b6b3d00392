"""How far long work is: what a run tells whoever watches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage is: `done` of `total` bytes or units; total is None where nobody can know it (a pipe)."""

    stage: str
    done: int
    total: int | None
    unit: str


ProgressCallback = Callable[[Progress], None]
