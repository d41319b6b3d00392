"""Gathering: batches within a budget, out of a bounded window of the input, and the way back to its order."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertworks.engines.batching import batch_by_token_budget, restore_order
from bertworks.errors import SettingsError


def gathered(lengths: list[int], budget: int, window: int = 100) -> list[list[tuple[int, int]]]:
    return list(batch_by_token_budget(lengths, lambda length: length, budget, window))


def test_batches_go_from_the_longest_to_the_shortest_and_keep_the_budget():
    assert gathered([3, 5, 2, 4], budget=7) == [[(1, 5)], [(3, 4), (0, 3)], [(2, 2)]]


def test_a_row_above_the_budget_is_a_batch_of_its_own():
    assert gathered([1, 9, 1], budget=3) == [[(1, 9)], [(0, 1), (2, 1)]]


def test_rows_are_sorted_only_inside_their_window():
    assert gathered([1, 9, 2, 8, 7], budget=100, window=2) == [[(1, 9), (0, 1)], [(3, 8), (2, 2)], [(4, 7)]]


def test_no_more_than_a_window_is_read_before_the_first_batch():
    read = itertools.count()
    batches = batch_by_token_budget((1 for _ in read), lambda length: length, budget=4, window=8)
    assert next(batches) == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert next(read) == 8


def test_batches_that_are_computed_at_once_share_the_budget_evenly():
    dealt = list(batch_by_token_budget([4] * 9, lambda length: length, budget=32, window=100, num_parallel_batches=2))
    assert [len(batch) for batch in dealt] == [2, 2, 3, 2]  # not 4, 4 and a single row that one core waits for
    assert (
        len(list(batch_by_token_budget([4] * 4, lambda length: length, budget=32, window=100, num_parallel_batches=2)))
        == 1
    )


def test_no_rows_make_no_batches():
    assert gathered([], budget=4) == []


@pytest.mark.parametrize(("budget", "window"), [(0, 4), (4, 0)])
def test_a_budget_or_window_of_nothing_is_refused(budget: int, window: int):
    with pytest.raises(SettingsError, match="give at least 1 of each"):
        gathered([1], budget, window)


@given(st.lists(st.integers(1, 30)), st.integers(1, 60), st.integers(1, 20), st.integers(1, 3))
def test_every_row_is_in_one_batch_and_comes_back_in_its_place(
    lengths: list[int], budget: int, window: int, num_at_once: int
):
    batches = list(batch_by_token_budget(lengths, lambda length: length, budget, window, num_at_once))
    own = max(1, budget // num_at_once)
    assert all(sum(length for _, length in batch) <= own or len(batch) == 1 for batch in batches)
    assert list(restore_order(itertools.chain(*batches))) == lengths


def test_a_value_is_handed_on_as_soon_as_all_before_it_are_there():
    read = []

    def found():
        for number in (1, 0, 2):
            read.append(number)
            yield number, str(number)

    values = restore_order(found())
    assert next(values) == "0"
    assert read == [1, 0]
    assert list(values) == ["1", "2"]
