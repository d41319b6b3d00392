"""Batching: batches within a token budget from a bounded window of the input, and the order of results."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertworks.engines.batching import batch_by_token_budget, restore_order
from bertworks.errors import SettingsError


def make_batches(lengths: list[int], budget: int, window: int = 100) -> list[list[tuple[int, int]]]:
    return list(batch_by_token_budget(lengths, lambda length: length, budget, window))


def test_batches_are_sorted_by_length_within_the_budget():
    assert make_batches([3, 5, 2, 4], budget=7) == [[(1, 5)], [(3, 4), (0, 3)], [(2, 2)]]


def test_a_sequence_above_the_budget_is_a_batch_of_its_own():
    assert make_batches([1, 9, 1], budget=3) == [[(1, 9)], [(0, 1), (2, 1)]]


def test_sequences_are_sorted_only_within_their_window():
    assert make_batches([1, 9, 2, 8, 7], budget=100, window=2) == [[(1, 9), (0, 1)], [(3, 8), (2, 2)], [(4, 7)]]


def test_only_one_window_is_consumed_before_the_first_batch():
    consumed = itertools.count()
    batches = batch_by_token_budget((1 for _ in consumed), lambda length: length, budget=4, window=8)
    assert next(batches) == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert next(consumed) == 8


def test_parallel_batches_divide_the_budget_evenly():
    def batch_sizes(count: int) -> list[int]:
        batches = batch_by_token_budget([4] * count, lambda length: length, 32, 100, num_parallel_batches=2)
        return [len(batch) for batch in batches]

    assert batch_sizes(9) == [2, 2, 3, 2]  # not 4, 4 and 1, for which one core would wait
    assert batch_sizes(4) == [4]


def test_no_sequences_make_no_batches():
    assert make_batches([], budget=4) == []


@pytest.mark.parametrize(("budget", "window"), [(0, 4), (4, 0)])
def test_a_budget_or_window_of_zero_is_refused(budget: int, window: int):
    with pytest.raises(SettingsError, match="both must be at least 1"):
        make_batches([1], budget, window)


@given(st.lists(st.integers(1, 30)), st.integers(1, 60), st.integers(1, 20), st.integers(1, 3))
def test_every_sequence_is_in_one_batch_and_results_are_in_order(
    lengths: list[int], budget: int, window: int, num_parallel_batches: int
):
    batches = list(batch_by_token_budget(lengths, lambda length: length, budget, window, num_parallel_batches))
    batch_budget = max(1, budget // num_parallel_batches)
    assert all(sum(length for _, length in batch) <= batch_budget or len(batch) == 1 for batch in batches)
    assert list(restore_order(itertools.chain(*batches))) == lengths


def test_a_result_is_yielded_as_soon_as_all_before_it_are_known():
    consumed = []

    def results():
        for index in (1, 0, 2):
            consumed.append(index)
            yield index, str(index)

    values = restore_order(results())
    assert next(values) == "0"
    assert consumed == [1, 0]
    assert list(values) == ["1", "2"]
