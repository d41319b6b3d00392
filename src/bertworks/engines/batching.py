"""Rows of any length in, batches of about equal work out; what was made of them in, the order of the input out.

Rows are sorted by length only inside a window of the input, so a stream of any size is gathered in constant memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from bertworks.errors import SettingsError

R = TypeVar("R")
V = TypeVar("V")

# Pieces of a batch: enough for products to run at full speed, few enough to stay in a processor's cache.
TOKEN_BUDGET = 2_048
# Rows that are sorted together. More of them lie closer in length, and wait longer for each other.
WINDOW = 1_024


def batch_by_token_budget(
    sequences: Iterable[R],
    length_of: Callable[[R], int],
    budget: int = TOKEN_BUDGET,
    window: int = WINDOW,
    num_parallel_batches: int = 1,
) -> Iterator[list[tuple[int, R]]]:
    """Yield batches of rows, each with its number in the input: the longest first, then ever shorter ones.

    A batch has at most `budget` pieces, or one row that is longer. After `window` rows it begins anew, so batches
    depend on nothing but the rows of their window. Batches that are computed `num_at_once` share the budget, and the
    rows of a window that need several are dealt out evenly, so that nobody has to wait for the last one.
    """
    if budget < 1 or window < 1:
        raise SettingsError(f"batches of {budget} pieces out of {window} rows cannot be; give at least 1 of each")
    own = max(1, budget // num_parallel_batches)
    numbered = enumerate(sequences)
    while found := list(islice(numbered, window)):
        found.sort(key=lambda one: -length_of(one[1]))  # a stable sort: equal lengths stay in the order of the input
        yield from _split_evenly(found, [length_of(row) for _, row in found], own, num_parallel_batches)


def _split_evenly(
    items: Sequence[V], lengths: Sequence[int], max_tokens: int, num_parallel_batches: int
) -> Iterator[list[V]]:
    """Yield runs of what was found, each of `most` pieces at most; of several, as many as can be computed at once."""
    left = sum(lengths)
    num_batches = (
        -(-left // (max_tokens * num_parallel_batches)) * num_parallel_batches
        if left > max_tokens and num_parallel_batches > 1
        else 0
    )
    first = num_pieces = 0
    for number, length in enumerate(lengths):
        # An even share of what is left; the row that reaches over its end belongs to the side with more of it.
        share = left / num_batches - length / 2 if num_batches > 1 else max_tokens
        if number > first and (num_pieces + length > max_tokens or num_pieces > share):
            yield list(items[first:number])
            left, num_batches = left - num_pieces, num_batches - 1
            first, num_pieces = number, 0
        num_pieces += length
    yield list(items[first:])


def restore_order(results: Iterable[tuple[int, V]]) -> Iterator[V]:
    """Yield values by their numbers 0, 1, 2, …, each as soon as all before it are there."""
    waiting: dict[int, V] = {}
    following = 0
    for number, value in results:
        waiting[number] = value
        while following in waiting:
            yield waiting.pop(following)
            following += 1
    assert not waiting, "a number is missing"
