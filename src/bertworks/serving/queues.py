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
from bertworks.engines.torch_engine import EncodedBatch, TorchEngine
from bertworks.inference.predictor import Outputs, Predictor
from bertworks.sampling.windows import Windows
from bertworks.tasks.contract import Features, InputSequence

Ints = npt.NDArray[np.int64]
# Long work, given what it has to call between its parts.
UnbatchedCall = Callable[[Callable[[], None]], Any]


@dataclass(frozen=True, eq=False, slots=True)
class PredictQueue:
    """Rows with what is asked there -> what the head of the task says."""

    model: str
    predictor: Predictor
    budget: int

    def length_of(self, sequence: InputSequence) -> int:
        return len(sequence.window)

    def compute(self, sequences: Sequence[InputSequence]) -> Sequence[Outputs]:
        (found,) = self.predictor.outputs([Features(tuple(sequences))])
        return found


@dataclass(frozen=True, slots=True)
class PoolingInput:
    """A row, the places of it that count for its text, and how they become a vector."""

    input_ids: Ints
    token_type_ids: Ints
    unknown: Mapping[int, str]
    pooled_positions: slice
    pooling: Pooling

    @property
    def num_pooled_positions(self) -> int:
        return int(self.pooled_positions.stop - self.pooled_positions.start)


@dataclass(frozen=True, eq=False, slots=True)
class EmbedQueue:
    """Rows of texts -> what each contributes to the vector of its text. Rows of several poolings go together."""

    model: str
    engine: TorchEngine

    @property
    def budget(self) -> int:
        return self.engine.budget

    def length_of(self, sequence: PoolingInput) -> int:
        return len(sequence.input_ids)

    def compute(self, sequences: Sequence[PoolingInput]) -> Sequence[torch.Tensor]:
        return list(self.engine.predict(sequences, _partial_vectors))


def _partial_vectors(encoded_batch: EncodedBatch[PoolingInput]) -> Iterator[torch.Tensor]:
    starts = encoded_batch.output.layout.starts.tolist()
    for row, start in zip(encoded_batch.sequences, starts, strict=True):
        yield row.pooling.pool(
            encoded_batch.output.last_hidden_state[start : start + len(row.input_ids)], row.pooled_positions
        )


def pooling_inputs(windows: Windows, pooling: Pooling) -> list[PoolingInput]:
    """Return the rows of a text. Each piece counts once, in the row where it stands farthest from the edges; the
    special pieces at the two ends of the text count too."""
    last = len(windows.sequences) - 1
    bounds = np.searchsorted(windows.owners(0), np.arange(last + 2)).tolist() if last else [0, 0]
    found = []
    for number, row in enumerate(windows.sequences):
        (run,) = row.spans
        first = run.position + bounds[number] - run.first if number else 0
        stop = run.position + bounds[number + 1] - run.first if number < last else len(row)
        found.append(PoolingInput(row.input_ids, row.token_type_ids, row.unknown, slice(first, stop), pooling))
    return found


@dataclass(frozen=True, eq=False, slots=True)
class UnbatchedQueue:
    """Work that is not gathered: one request a turn, which calls `pause` between its parts."""

    model: str
    pause: Callable[[], None]
    budget: int = 1

    def length_of(self, call: UnbatchedCall) -> int:
        return 1

    def compute(self, calls: Sequence[UnbatchedCall]) -> Sequence[Any]:
        return [row(self.pause) for row in calls]
