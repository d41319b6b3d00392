"""The order of examples and their randomness are pure functions of seed, phase, split, epoch and index."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertworks.sampling.order import ExampleOrder

ORDER = ExampleOrder(7, "phase", "train")


@given(size=st.integers(1, 700), epoch=st.integers(0, 2**40), seed=st.integers(0, 2**64))
def test_an_epoch_is_a_permutation_of_all_indices(size: int, epoch: int, seed: int) -> None:
    example_order = ExampleOrder(seed, "phase", "train")
    assert sorted(example_order.permute(epoch, index, size) for index in range(size)) == list(range(size))


@given(size=st.integers(2**20, 2**62), first=st.integers(0, 2**20 - 100))
def test_permuted_indices_of_a_huge_epoch_are_in_range_and_distinct(size: int, first: int) -> None:
    permuted = [ORDER.permute(3, index, size) for index in range(first, first + 50)]
    assert len(set(permuted)) == 50
    assert all(0 <= index < size for index in permuted)


def test_every_epoch_has_a_different_order() -> None:
    orders = {tuple(ORDER.permute(epoch, index, 50) for index in range(50)) for epoch in range(100)}
    assert len(orders) == 100


def test_permutations_are_uniform() -> None:
    # 2,000 epochs of 10: each index occurs 200 times; 5 standard deviations are 5 * sqrt(2000 * 0.1 * 0.9) = 67.
    counts = np.bincount([ORDER.permute(epoch, 3, 10) for epoch in range(2000)], minlength=10)
    assert len(counts) == 10
    assert abs(counts - 200).max() <= 67


def test_permutations_separate_neighbors() -> None:
    order = np.array([ORDER.permute(0, index, 10_000) for index in range(10_000)])
    # Two random neighbors stay adjacent with probability 2 in 10,000: 2 are expected, and 12 are 7 standard deviations
    # away.
    assert (abs(np.diff(order)) == 1).sum() <= 12


def test_a_generator_does_not_depend_on_earlier_draws() -> None:
    expected = ORDER.generator(4, 9).random(5).tolist()
    for epoch, index in ((4, 8), (9, 4), (4, 9)):
        ORDER.generator(epoch, index).random(100)
    assert ORDER.generator(4, 9).random(5).tolist() == expected


def test_examples_epochs_seeds_phases_and_splits_have_different_generators() -> None:
    example_orders = [
        ORDER,
        ExampleOrder(8, "phase", "train"),
        ExampleOrder(7, "other", "train"),
        ExampleOrder(7, "phase", "held-out"),
    ]
    draws = [
        example_order.generator(epoch, index).random()
        for example_order in example_orders
        for epoch in (0, 1, 2)
        for index in (0, 1, 2)
    ]
    assert len(set(draws)) == 36


def test_examples_never_share_draws_even_after_many() -> None:
    many_draws = ORDER.generator(0, 0).integers(0, 2**63, 20_000)
    for epoch, index in ((0, 1), (1, 0), (2, 0)):
        assert not np.isin(ORDER.generator(epoch, index).integers(0, 2**63, 100), many_draws).any()


def test_epoch_offsets_are_uniform_in_0_1() -> None:
    offsets = np.array([ORDER.offset(epoch) for epoch in range(1000)])
    assert offsets.min() >= 0
    assert offsets.max() < 1
    # The mean of 1,000 uniform draws has a standard deviation of 0.289 / sqrt(1000) = 0.0091; 5 of them.
    assert abs(offsets.mean() - 0.5) < 0.046
    assert len(set(offsets.tolist())) == 1000
