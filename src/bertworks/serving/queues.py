"""The queues of a model: sequences in; head outputs, pooled vectors or results of unbatched calls out.

T positions, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.embeddings.pooling import Pooling
from bertworks.engines.torch_engine import EncodedBatch, TorchEngine, to_numpy
from bertworks.inference.predictor import Outputs, Predictor
from bertworks.sampling.windows import Windows
from bertworks.tasks.contract import Features, InputSequence

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
# Unbatched work; its argument is the function to call between its parts.
UnbatchedCall = Callable[[Callable[[], None]], Any]


@dataclass(frozen=True, eq=False, slots=True)
class PredictQueue:
    """Input sequences of a task -> outputs of its head."""

    model: str
    predictor: Predictor
    budget: int

    def length_of(self, sequence: InputSequence) -> int:
        return len(sequence)

    def compute(self, sequences: Sequence[InputSequence]) -> Sequence[Outputs]:
        (outputs,) = self.predictor.outputs([Features(sequences=tuple(sequences))])
        return outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingInput:
    """A window of a text, or the whole text, which of its positions are pooled, and how; `offset` is the index in the
    text of its first position."""

    input_ids: Ints
    token_type_ids: Ints
    unknown: Mapping[int, str]
    pooled_positions: slice
    pooling: Pooling
    is_whole_text: bool
    offset: int = 0

    @property
    def num_pooled_positions(self) -> int:
        return int(self.pooled_positions.stop - self.pooled_positions.start)


@dataclass(frozen=True, eq=False, slots=True)
class EmbedQueue:
    """Windows of texts -> their contributions to the texts' vectors (kinds, D); whole texts -> vectors (kinds * D,).

    Different poolings share a batch.
    """

    model: str
    engine: TorchEngine

    @property
    def budget(self) -> int:
        return self.engine.budget

    def length_of(self, sequence: PoolingInput) -> int:
        return len(sequence.input_ids)

    def compute(self, sequences: Sequence[PoolingInput]) -> Sequence[Floats]:
        partials = list(self.engine.predict(sequences, _partial_vectors))
        indices_by_pooling: dict[Pooling, list[int]] = {}
        for index, sequence in enumerate(sequences):
            if sequence.is_whole_text:
                indices_by_pooling.setdefault(sequence.pooling, []).append(index)
        for pooling, indices in indices_by_pooling.items():
            counts = [sequences[index].num_pooled_positions for index in indices]
            vectors = pooling.combine_single([partials[index] for index in indices], counts)
            for index, vector in zip(indices, vectors, strict=True):
                partials[index] = vector
        return partials


def _partial_vectors(encoded_batch: EncodedBatch[PoolingInput]) -> Iterator[Floats]:
    last_hidden_state = to_numpy(encoded_batch.output.last_hidden_state)  # (N, D)
    for sequence, start in zip(encoded_batch.sequences, encoded_batch.output.starts, strict=True):
        hidden_states = last_hidden_state[start : start + len(sequence.input_ids)]  # (T, D)
        yield sequence.pooling.pool(hidden_states, sequence.pooled_positions, sequence.offset)


def pooling_inputs(windows: Windows, pooling: Pooling) -> list[PoolingInput]:
    """Return the windows of a text with their pooled positions.

    Each token is pooled once, in the window where it is farthest from the edges. The special tokens at both ends of the
    text are pooled too, unless the pooling is without them.
    """
    last = len(windows.sequences) - 1
    num_tokens = windows.sequences[0].spans[0].count
    bounds = np.searchsorted(windows.owners(0), np.arange(last + 2)).tolist() if last else [0, num_tokens]
    inputs: list[PoolingInput] = []
    for index, window in enumerate(windows.sequences):
        (span,) = window.spans
        start, stop = (span.position + bound - span.first for bound in bounds[index : index + 2])
        if pooling.with_specials:
            start = start if index else pooling.first_position(len(window))
            stop = stop if index < last else len(window)
        inputs.append(
            PoolingInput(
                input_ids=window.input_ids,
                token_type_ids=window.token_type_ids,
                unknown=window.unknown,
                pooled_positions=slice(start, stop),
                pooling=pooling,
                is_whole_text=last == 0,
                offset=inputs[-1].offset + inputs[-1].pooled_positions.stop - start if inputs else 0,
            )
        )
    return inputs


@dataclass(frozen=True, eq=False, slots=True)
class UnbatchedQueue:
    """Work that cannot be batched: one request at a time, which calls `pause` between its parts."""

    model: str
    pause: Callable[[], None]
    budget: int = 1

    def length_of(self, call: UnbatchedCall) -> int:
        return 1

    def compute(self, calls: Sequence[UnbatchedCall]) -> Sequence[Any]:
        return [call(self.pause) for call in calls]
