"""Rows of any length in, batches of about equal work out; what was made of them in, the order of the input out.

Rows are sorted by length only inside a window of the input, so a stream of any size is gathered in constant memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from bertworks.errors import SettingsError

R = TypeVar("R")
V = TypeVar("V")

# Pieces of a batch: enough for products to run at full speed, few enough to stay in a processor's cache.
BUDGET = 2_048
# Rows that are sorted together. More of them lie closer in length, and wait longer for each other.
WINDOW = 1_024


def in_budget(
    rows: Iterable[R], length_of: Callable[[R], int], budget: int = BUDGET, window: int = WINDOW
) -> Iterator[list[tuple[int, R]]]:
    """Yield batches of rows, each with its number in the input: the longest first, then ever shorter ones.

    A batch has at most `budget` pieces, or one row that is longer. After `window` rows it begins anew, so batches
    depend on nothing but the rows of their window.
    """
    if budget < 1 or window < 1:
        raise SettingsError(f"batches of {budget} pieces out of {window} rows cannot be; give at least 1 of each")
    numbered = enumerate(rows)
    while found := list(islice(numbered, window)):
        found.sort(key=lambda one: -length_of(one[1]))  # a stable sort: equal lengths stay in the order of the input
        batch: list[tuple[int, R]] = []
        num_pieces = 0
        for number, row in found:
            length = length_of(row)
            if batch and num_pieces + length > budget:
                yield batch
                batch, num_pieces = [], 0
            batch.append((number, row))
            num_pieces += length
        yield batch


def in_order(found: Iterable[tuple[int, V]]) -> Iterator[V]:
    """Yield values by their numbers 0, 1, 2, …, each as soon as all before it are there."""
    waiting: dict[int, V] = {}
    following = 0
    for number, value in found:
        waiting[number] = value
        while following in waiting:
            yield waiting.pop(following)
            following += 1
    assert not waiting, "a number is missing"
