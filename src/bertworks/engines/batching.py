"""Batching: sequences of any length in, batches of about equal work out; and results back in the order of the input.

Sequences are sorted by length only within a window of the input, so a stream of any size needs constant memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from bertworks.errors import SettingsError

R = TypeVar("R")
V = TypeVar("V")

# Tokens of a batch: enough for matmuls to run at full speed, few enough for the CPU cache.
TOKEN_BUDGET = 2_048
# Sequences that are sorted together. A larger window needs less padding, and delays the first results.
WINDOW = 1_024
# Of a stream, the first ones: later sequences are tokenized while these are computed.
FIRST_WINDOW = 128


def batch_by_token_budget(
    sequences: Iterable[R],
    length_of: Callable[[R], int],
    budget: int = TOKEN_BUDGET,
    window: int = WINDOW,
    num_parallel_batches: int = 1,
    first_window: int | None = None,
) -> Iterator[list[tuple[int, R]]]:
    """Yield batches of (index in the input, sequence), the longest sequences of a window first.

    A batch has at most `budget` tokens, or one sequence that is longer. Each window of `window` sequences is batched on
    its own; with `first_window` they begin with so many and double, so that the first batch need not wait for many.
    Batches that run in parallel share the budget, and a window that needs several batches is divided evenly among them,
    so that all workers finish at about the same time.
    """
    size = min(first_window or window, window)
    if budget < 1 or size < 1:
        raise SettingsError(f"budget is {budget} tokens and window {window} sequences; both must be at least 1")
    batch_budget = max(1, budget // num_parallel_batches)
    indexed_sequences = enumerate(sequences)
    while items := list(islice(indexed_sequences, size)):
        size = min(2 * size, window)
        items.sort(key=lambda item: -length_of(item[1]))  # stable: equal lengths stay in the order of the input
        lengths = [length_of(sequence) for _, sequence in items]
        yield from _split_evenly(items, lengths, batch_budget, num_parallel_batches)


def _split_evenly(
    items: Sequence[V], lengths: Sequence[int], max_tokens: int, num_parallel_batches: int
) -> Iterator[list[V]]:
    """Yield consecutive batches of at most `max_tokens`; their number is a multiple of `num_parallel_batches`."""
    remaining = sum(lengths)
    num_batches = (
        -(-remaining // (max_tokens * num_parallel_batches)) * num_parallel_batches
        if remaining > max_tokens and num_parallel_batches > 1
        else 0
    )
    first = num_tokens = 0
    for index, length in enumerate(lengths):
        # An even part of the remaining tokens; a sequence across its end belongs to the side with more of it.
        target = remaining / num_batches - length / 2 if num_batches > 1 else max_tokens
        if index > first and (num_tokens + length > max_tokens or num_tokens > target):
            yield list(items[first:index])
            remaining, num_batches = remaining - num_tokens, num_batches - 1
            first, num_tokens = index, 0
        num_tokens += length
    yield list(items[first:])


def restore_order(results: Iterable[tuple[int, V]]) -> Iterator[V]:
    """Yield values by their indices 0, 1, 2, …, each as soon as all values before it are known."""
    pending: dict[int, V] = {}
    next_index = 0
    for index, value in results:
        pending[index] = value
        while next_index in pending:
            yield pending.pop(next_index)
            next_index += 1
    assert not pending, "an index is missing"
