"""Rows of pieces in, what an encoder makes of them out: PyTorch, batches by a budget of pieces, no padding computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from bertworks.encoders.encoded import Encoded
from bertworks.encoders.stack import Encoder
from bertworks.engines.batching import TOKEN_BUDGET, WINDOW, batch_by_token_budget, restore_order
from bertworks.engines.workers import map_parallel
from bertworks.sampling.batch import TokenSequence, collate_sequences
from bertworks.vocabulary.tokenizer import Tokenizer

R = TypeVar("R", bound=TokenSequence)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class EncodedBatch(Generic[R]):
    """A batch: its rows, their numbers in the input, and what became of them, all in the order of the batch."""

    indices: tuple[int, ...]
    sequences: tuple[R, ...]
    output: Encoded


class TorchEngine:
    """An encoder that is fed at most `budget` pieces at a time, gathered from `window` rows."""

    def __init__(
        self, encoder: Encoder, tokenizer: Tokenizer, budget: int = TOKEN_BUDGET, window: int = WINDOW
    ) -> None:
        self.encoder = encoder
        self.tokenizer = tokenizer
        self.budget = budget
        self.window = window

    def encode(self, sequences: Iterable[R]) -> Iterator[EncodedBatch[R]]:
        """Yield the rows in batches: the longest of a window first, then ever shorter ones."""
        return map_parallel(self._batches(sequences), self._encode_batch, self.encoder.num_parallel_batches)

    def _batches(self, sequences: Iterable[R]) -> Iterator[list[tuple[int, R]]]:
        return batch_by_token_budget(
            sequences, lambda row: len(row.input_ids), self.budget, self.window, self.encoder.num_parallel_batches
        )

    @torch.inference_mode()
    def _encode_batch(self, indexed_batch: list[tuple[int, R]]) -> EncodedBatch[R]:
        numbers, batched = zip(*indexed_batch, strict=True)
        batch = collate_sequences(batched, self.tokenizer.specials.pad).to(self.encoder.device)
        return EncodedBatch(numbers, batched, self.encoder(batch))

    def predict(self, sequences: Iterable[R], decode: Callable[[EncodedBatch[R]], Iterable[V]]) -> Iterator[V]:
        """Yield what `read` makes of each row, in the order of the input; `read` gives one value a row of a batch."""
        return restore_order(self._predict_unordered(sequences, decode))

    def _predict_unordered(
        self, sequences: Iterable[R], decode: Callable[[EncodedBatch[R]], Iterable[V]]
    ) -> Iterator[tuple[int, V]]:
        def answered(gathered: list[tuple[int, R]]) -> list[tuple[int, V]]:
            found = self._encode_batch(gathered)
            with torch.inference_mode():
                return list(zip(found.indices, decode(found), strict=True))

        for answers in map_parallel(self._batches(sequences), answered, self.encoder.num_parallel_batches):
            yield from answers
