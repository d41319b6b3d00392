"""The engine of all encoders: token sequences in, encoder outputs out, batched by a token budget, without padding.

An encoder in PyTorch returns tensors, a graph numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from bertworks.engines.batching import FIRST_WINDOW, TOKEN_BUDGET, WINDOW, batch_by_token_budget, restore_order
from bertworks.engines.workers import map_parallel
from bertworks.sampling.padding import TokenSequence
from bertworks.vocabulary.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

    from bertworks.encoders.encoded import Encoded
    from bertworks.encoders.encoder import Encoder

R = TypeVar("R", bound=TokenSequence)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class EncodedBatch(Generic[R]):
    """A batch: its sequences, their indices in the input, and the encoder output, in the order of the batch."""

    indices: tuple[int, ...]
    sequences: tuple[R, ...]
    output: Encoded


class TorchEngine:
    """Runs an encoder on batches of at most `budget` tokens, taken from windows of `window` sequences."""

    def __init__(
        self, encoder: Encoder, tokenizer: Tokenizer, budget: int = TOKEN_BUDGET, window: int = WINDOW
    ) -> None:
        self.encoder = encoder
        self.tokenizer = tokenizer
        self.budget = budget
        self.window = window

    def encode(self, sequences: Iterable[R]) -> Iterator[EncodedBatch[R]]:
        """Yield the encoded sequences in batches, the longest of a window first."""
        return map_parallel(self._batches(sequences), self._encode_batch, self.encoder.num_parallel_batches)

    def _batches(self, sequences: Iterable[R]) -> Iterator[list[tuple[int, R]]]:
        num_parallel_batches = self.encoder.num_parallel_batches
        return batch_by_token_budget(
            sequences,
            lambda sequence: len(sequence.input_ids),
            self.budget,
            self.window,
            num_parallel_batches,
            FIRST_WINDOW,
        )

    def _encode_batch(self, indexed_batch: list[tuple[int, R]]) -> EncodedBatch[R]:
        indices, sequences = zip(*indexed_batch, strict=True)
        return EncodedBatch(indices, sequences, self.encoder.encode_sequences(sequences, self.tokenizer.specials.pad))

    def predict(self, sequences: Iterable[R], decode: Callable[[EncodedBatch[R]], Iterable[V]]) -> Iterator[V]:
        """Yield the prediction for each sequence, in the order of the input; `decode` returns one per sequence."""
        return restore_order(self._predict_unordered(sequences, decode))

    def _predict_unordered(
        self, sequences: Iterable[R], decode: Callable[[EncodedBatch[R]], Iterable[V]]
    ) -> Iterator[tuple[int, V]]:
        def predict_batch(indexed_batch: list[tuple[int, R]]) -> list[tuple[int, V]]:
            encoded = self._encode_batch(indexed_batch)
            return list(zip(encoded.indices, decode(encoded), strict=True))

        for predictions in map_parallel(self._batches(sequences), predict_batch, self.encoder.num_parallel_batches):
            yield from predictions


def to_numpy(values: torch.Tensor | npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the values of an encoder in fp32: a tensor's are copied where its precision or device differs."""
    return values if isinstance(values, np.ndarray) else values.float().cpu().numpy()
