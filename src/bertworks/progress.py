"""Progress of long work: what a run passes to a progress callback."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressDetail:
    """What a bar shows besides the count: a text such as the loss, and the seconds left if the run knows better."""

    text: str = ""
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` bytes or units of a stage; total is None where it is unknown (a pipe)."""

    stage: str
    done: int
    total: int | None
    unit: str
    detail: ProgressDetail = field(default=ProgressDetail(), kw_only=True)

    @property
    def is_counted(self) -> bool:
        """Whether the stage counts anything; without a unit, only its name is known."""
        return bool(self.unit)


ProgressCallback = Callable[[Progress], None]


def begin_stage(stage: str) -> Progress:
    """Return the event of a stage that cannot count what it does."""
    return Progress(stage, 0, None, "")


def ignore_progress(progress: Progress) -> None:
    """The callback of a caller who does not watch."""


def is_live(stream: TextIO) -> bool:
    """Return whether bars can be drawn on a stream: a terminal that moves its cursor, and nobody asked for less."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("CI") or os.environ.get("TERM") in ("dumb", "unknown")
    return stream.isatty() and not is_plain
