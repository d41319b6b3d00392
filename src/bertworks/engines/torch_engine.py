"""Rows of pieces in, what an encoder makes of them out: PyTorch, batches by a budget of pieces, no padding computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from bertworks.encoders.encoded import Encoded
from bertworks.encoders.stack import Stack
from bertworks.engines.batching import BUDGET, WINDOW, in_budget, in_order
from bertworks.engines.workers import at_once
from bertworks.sampling.batch import Row, batch_of_rows
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
    """An encoder that is fed at most `budget` pieces at a time, gathered from `window` rows."""

    def __init__(self, encoder: Stack, tokenizer: Tokenizer, budget: int = BUDGET, window: int = WINDOW) -> None:
        self.encoder = encoder
        self.tokenizer = tokenizer
        self.budget = budget
        self.window = window

    def encode(self, rows: Iterable[R]) -> Iterator[EncodedRows[R]]:
        """Yield the rows in batches: the longest of a window first, then ever shorter ones."""
        return at_once(self._batches(rows), self._encoded, self.encoder.num_at_once)

    def _batches(self, rows: Iterable[R]) -> Iterator[list[tuple[int, R]]]:
        return in_budget(rows, lambda row: len(row.ids), self.budget, self.window, self.encoder.num_at_once)

    @torch.inference_mode()
    def _encoded(self, gathered: list[tuple[int, R]]) -> EncodedRows[R]:
        numbers, batched = zip(*gathered, strict=True)
        batch = batch_of_rows(batched, self.tokenizer.specials.pad).to(self.encoder.device)
        return EncodedRows(numbers, batched, self.encoder(batch))

    def answers(self, rows: Iterable[R], read: Callable[[EncodedRows[R]], Iterable[V]]) -> Iterator[V]:
        """Yield what `read` makes of each row, in the order of the input; `read` gives one value a row of a batch."""
        return in_order(self._answers(rows, read))

    def _answers(self, rows: Iterable[R], read: Callable[[EncodedRows[R]], Iterable[V]]) -> Iterator[tuple[int, V]]:
        def answered(gathered: list[tuple[int, R]]) -> list[tuple[int, V]]:
            found = self._encoded(gathered)
            with torch.inference_mode():
                return list(zip(found.numbers, read(found), strict=True))

        for answers in at_once(self._batches(rows), answered, self.encoder.num_at_once):
            yield from answers
