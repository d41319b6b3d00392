"""What the worker computes: rows of a model in, what its head, its layers or a whole piece of work makes of them out.

T places of a row, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bertworks.embeddings.pooling import Pooling
from bertworks.engines.torch_engine import EncodedRows, TorchEngine
from bertworks.inference.predictor import Outputs, Predictor
from bertworks.sampling.windows import Windows
from bertworks.tasks.contract import Asked, Question

Ints = npt.NDArray[np.int64]
# Long work, given what it has to call between its parts.
Whole = Callable[[Callable[[], None]], Any]


@dataclass(frozen=True, eq=False, slots=True)
class PredictLane:
    """Rows with what is asked there -> what the head of the task says."""

    model: str
    predictor: Predictor
    budget: int

    def length_of(self, row: Asked) -> int:
        return len(row.window)

    def compute(self, rows: Sequence[Asked]) -> Sequence[Outputs]:
        (found,) = self.predictor.outputs([Question(tuple(rows))])
        return found


@dataclass(frozen=True, slots=True)
class PooledRow:
    """A row, the places of it that count for its text, and how they become a vector."""

    ids: Ints
    segments: Ints
    unknown: Mapping[int, str]
    kept: slice
    pooling: Pooling

    @property
    def num_kept(self) -> int:
        return int(self.kept.stop - self.kept.start)


@dataclass(frozen=True, eq=False, slots=True)
class EmbedLane:
    """Rows of texts -> what each contributes to the vector of its text. Rows of several poolings go together."""

    model: str
    engine: TorchEngine

    @property
    def budget(self) -> int:
        return self.engine.budget

    def length_of(self, row: PooledRow) -> int:
        return len(row.ids)

    def compute(self, rows: Sequence[PooledRow]) -> Sequence[torch.Tensor]:
        return list(self.engine.answers(rows, _shares))


def _shares(found: EncodedRows[PooledRow]) -> Iterator[torch.Tensor]:
    starts = found.encoded.layout.starts.tolist()
    for row, start in zip(found.rows, starts, strict=True):
        yield row.pooling.share(found.encoded.last[start : start + len(row.ids)], row.kept)


def pooled_rows(windows: Windows, pooling: Pooling) -> list[PooledRow]:
    """Return the rows of a text. Each piece counts once, in the row where it stands farthest from the edges; the
    special pieces at the two ends of the text count too."""
    last = len(windows.rows) - 1
    bounds = np.searchsorted(windows.owners(0), np.arange(last + 2)).tolist() if last else [0, 0]
    found = []
    for number, row in enumerate(windows.rows):
        (run,) = row.runs
        first = run.place + bounds[number] - run.first if number else 0
        stop = run.place + bounds[number + 1] - run.first if number < last else len(row)
        found.append(PooledRow(row.ids, row.segments, row.unknown, slice(first, stop), pooling))
    return found


@dataclass(frozen=True, eq=False, slots=True)
class WholeLane:
    """Work that is not gathered: one request a turn, which calls `pause` between its parts."""

    model: str
    pause: Callable[[], None]
    budget: int = 1

    def length_of(self, row: Whole) -> int:
        return 1

    def compute(self, rows: Sequence[Whole]) -> Sequence[Any]:
        return [row(self.pause) for row in rows]
