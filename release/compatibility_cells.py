"""Cells of the compatibility page: a measurement in, the text of a cell out, and whether it has failed.

A measurement returns figures, each with the largest value that it may have, or a sentence. What raises an error, or has
a figure above its limit, has failed; the cell says so, and the page is still written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.errors import BertworksError

# Of float32 sums in another order.
TOLERANCE = 1e-5
_MAX_CHARACTERS = 240


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value: `name value`, as in "logits 3e-07", and the largest one that is not a failure."""

    name: str
    value: float
    limit: float = TOLERANCE

    @property
    def has_failed(self) -> bool:
        return not self.value <= self.limit  # also if it is not a number

    def __str__(self) -> str:
        value = "0" if self.value == 0 else f"{self.value:.0e}".replace("e-0", "e-").replace("e+0", "e+")
        text = f"{self.name} {value}".strip()
        return f"**{text}, more than {self.limit:.0e}**" if self.has_failed else text


@dataclass(frozen=True, slots=True)
class Cell:
    """The text of a cell, and whether what it measures has failed."""

    text: str
    has_failed: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: its name and its cells."""

    name: str
    cells: tuple[Cell, ...]


Part = Figure | str
Measurement = Callable[[], Iterable[Part]]


def measure(measurement: Measurement) -> Cell:
    """Run a measurement. An error is a failed cell with its message; the rest of the page is still measured."""
    try:
        parts = list(measurement())
    except Exception as error:  # whatever happens is the result
        return Cell(f"**failed**: {describe(error)}", has_failed=True)
    has_failed = any(isinstance(part, Figure) and part.has_failed for part in parts)
    return Cell(", ".join(map(str, parts)), has_failed)


def refusal(measurement: Measurement) -> Cell:
    """Run what is expected to be refused with one of our errors: its message is the cell. Anything else has failed."""
    try:
        parts = list(measurement())
    except BertworksError as error:
        return Cell(f"refused: {describe(error)}")
    except Exception as error:
        return Cell(f"**failed**: {describe(error)}", has_failed=True)
    return Cell(f"**not refused**: {', '.join(map(str, parts))}", has_failed=True)


def describe(error: Exception) -> str:
    """Return an error in one line without the folders of this run."""
    words = [word.rpartition("/")[2] if word.startswith("/") else word for word in str(error).split()]
    kind = "" if isinstance(error, BertworksError) else f"{type(error).__name__}: "
    return (kind + " ".join(words)).replace("|", "/")[:_MAX_CHARACTERS]


def difference(ours: npt.ArrayLike, theirs: npt.ArrayLike) -> float:
    """Return the largest absolute difference of two arrays of one shape."""
    first, second = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(f"the shape {first.shape} is not {second.shape}")
    return float(np.abs(first - second).max(initial=0.0))


def largest(name: str, pairs: Iterable[tuple[Any, Any]], limit: float = TOLERANCE) -> Figure:
    """Return the largest absolute difference of pairs of arrays: ours and theirs."""
    return Figure(name, max((difference(ours, theirs) for ours, theirs in pairs), default=0.0), limit)


def table(header: Sequence[str], rows: Iterable[Row]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    lines += [f"| {' | '.join([row.name, *(cell.text for cell in row.cells)])} |" for row in rows]
    return "\n".join(lines)
