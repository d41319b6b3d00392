"""Rows of pieces in, what an encoder makes of them out: PyTorch, batches by a budget of pieces, no padding computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from bertworks.encoders.encoded import Encoded
from bertworks.encoders.stack import Stack
from bertworks.engines.gathering import BUDGET, WINDOW, in_budget, in_order
from bertworks.examples.batch import Row, batch_of_rows
from bertworks.vocabulary.tokenizer import Tokenizer

R = TypeVar("R", bound=Row)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class EncodedRows(Generic[R]):
    """A batch: its rows, their numbers in the input, and what became of them, all in the order of the batch."""

    numbers: tuple[int, ...]
    rows: tuple[R, ...]
    encoded: Encoded


class TorchEngine:
    """An encoder that is fed batches of at most `budget` pieces, gathered from `window` rows at a time."""

    def __init__(self, encoder: Stack, tokenizer: Tokenizer, budget: int = BUDGET, window: int = WINDOW) -> None:
        self.encoder = encoder
        self.tokenizer = tokenizer
        self.budget = budget
        self.window = window

    def encode(self, rows: Iterable[R]) -> Iterator[EncodedRows[R]]:
        """Yield the rows in batches, in the order in which they were computed."""
        device = self.encoder.pieces.weight.device
        for gathered in in_budget(rows, lambda row: len(row.ids), self.budget, self.window):
            numbers, batched = zip(*gathered, strict=True)
            batch = batch_of_rows(batched, self.tokenizer.specials.pad).to(device)
            with torch.inference_mode():  # not around the yield: the caller's own work is not ours to change
                encoded = self.encoder(batch)
            yield EncodedRows(numbers, batched, encoded)

    def answers(self, rows: Iterable[R], read: Callable[[EncodedRows[R]], Iterable[V]]) -> Iterator[V]:
        """Yield what `read` makes of each row, in the order of the input; `read` gives one value a row of a batch."""
        return in_order(self._answers(rows, read))

    def _answers(self, rows: Iterable[R], read: Callable[[EncodedRows[R]], Iterable[V]]) -> Iterator[tuple[int, V]]:
        for found in self.encode(rows):
            with torch.inference_mode():
                values = list(read(found))
            yield from zip(found.numbers, values, strict=True)
