"""The order of examples and their randomness are pure functions of seed, phase, split, epoch and index."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertworks.sampling.order import ExampleOrder

STREAM = ExampleOrder(7, "phase", "train")


@given(size=st.integers(1, 700), epoch=st.integers(0, 2**40), seed=st.integers(0, 2**64))
def test_an_epoch_is_a_permutation_of_all_indices(size: int, epoch: int, seed: int) -> None:
    stream = ExampleOrder(seed, "phase", "train")
    assert sorted(stream.permute(epoch, index, size) for index in range(size)) == list(range(size))


@given(size=st.integers(2**20, 2**62), first=st.integers(0, 2**20 - 100))
def test_indices_of_a_huge_epoch_stay_inside_and_apart(size: int, first: int) -> None:
    found = [STREAM.permute(3, index, size) for index in range(first, first + 50)]
    assert len(set(found)) == 50
    assert all(0 <= index < size for index in found)


def test_every_epoch_has_an_order_of_its_own() -> None:
    orders = {tuple(STREAM.permute(epoch, index, 50) for index in range(50)) for epoch in range(100)}
    assert len(orders) == 100


def test_an_index_may_go_anywhere() -> None:
    # 2,000 epochs of 10: each place gets 200; 5 standard deviations are 5 * sqrt(2000 * 0.1 * 0.9) = 67.
    counts = np.bincount([STREAM.permute(epoch, 3, 10) for epoch in range(2000)], minlength=10)
    assert len(counts) == 10
    assert abs(counts - 200).max() <= 67


def test_neighbours_do_not_stay_neighbours() -> None:
    order = np.array([STREAM.permute(0, index, 10_000) for index in range(10_000)])
    # Of two random neighbours the chance is 2 in 10,000: 2 are expected, and 12 lie 7 standard deviations away.
    assert (abs(np.diff(order)) == 1).sum() <= 12


def test_a_generator_does_not_depend_on_what_was_drawn_before() -> None:
    expected = STREAM.generator(4, 9).random(5).tolist()
    for epoch, index in ((4, 8), (9, 4), (4, 9)):
        STREAM.generator(epoch, index).random(100)
    assert STREAM.generator(4, 9).random(5).tolist() == expected


def test_examples_epochs_seeds_phases_and_splits_have_generators_of_their_own() -> None:
    streams = [
        STREAM,
        ExampleOrder(8, "phase", "train"),
        ExampleOrder(7, "other", "train"),
        ExampleOrder(7, "phase", "held-out"),
    ]
    draws = [
        stream.generator(epoch, index).random() for stream in streams for epoch in (0, 1, 2) for index in (0, 1, 2)
    ]
    assert len(set(draws)) == 36


def test_two_examples_never_share_draws_even_if_one_draws_much() -> None:
    long = STREAM.generator(0, 0).integers(0, 2**63, 20_000)
    for epoch, index in ((0, 1), (1, 0), (2, 0)):
        assert not np.isin(STREAM.generator(epoch, index).integers(0, 2**63, 100), long).any()


def test_offsets_fill_zero_to_one_evenly() -> None:
    offsets = np.array([STREAM.offset(epoch) for epoch in range(1000)])
    assert offsets.min() >= 0
    assert offsets.max() < 1
    # The mean of 1,000 uniform draws has a standard deviation of 0.289 / sqrt(1000) = 0.0091; 5 of them.
    assert abs(offsets.mean() - 0.5) < 0.046
    assert len(set(offsets.tolist())) == 1000
