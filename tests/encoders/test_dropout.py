"""Dropout, by hash and by Philox: the rate, independence of neighbours, rows and seeds, the gradient, repeatability."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from bertworks.encoders.dropout import _hash_mask, dropout, dropout_mask
from bertworks.encoders.layers import DropoutSeeds

NUM = 1_000_000
SHAPE = torch.Size((1_000, 1_000))
SEEDS = (0, 1, -1, 12_345, 2**31 - 1, -(2**31))
# Over so many seeds and shifts as are looked at here, chance alone stays within five deviations.
DEVIATIONS = 5
# How values are chosen in plain calls on a CPU, and in a compiled layer: two ways with the same promises.
WAYS = {"plain": dropout_mask, "compiled": _hash_mask}
Way = Callable[[torch.Size, torch.Tensor, float], torch.Tensor]
every_way = pytest.mark.parametrize("choose", WAYS.values(), ids=WAYS)


pytestmark = pytest.mark.usefixtures("one_thread")


def seed_of(number: int) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.int32)


def correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    """The correlation of two equally long boolean tensors; of independent ones, about 1 / sqrt(how many) from zero."""
    first, second, both = (int(values.count_nonzero()) / values.numel() for values in (one, other, one & other))
    return (both - first * second) / math.sqrt(first * (1 - first) * second * (1 - second))


@every_way
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.01])
@pytest.mark.parametrize("number", SEEDS)
def test_values_are_dropped_at_the_stated_rate(choose: Way, number: int, rate: float):
    dropped = NUM - int(choose(SHAPE, seed_of(number), rate).sum())
    assert abs(dropped - rate * NUM) < DEVIATIONS * math.sqrt(NUM * rate * (1 - rate))


@every_way
@pytest.mark.parametrize("dimension", [0, 1])
def test_every_row_and_column_has_the_rate_of_its_own(choose: Way, dimension: int):
    """The 1,000 sums of rows spread as sums of 1,000 independent draws: variance 90, which is known to 5 * 4.5 %."""
    sums = (~choose(SHAPE, seed_of(3), 0.1)).sum(dimension).double()
    assert abs(float(sums.var()) - 90) < DEVIATIONS * 0.045 * 90
    assert float((sums - 100).abs().max()) < 6 * math.sqrt(90)


@every_way
@pytest.mark.parametrize("number", SEEDS[:4])
def test_neighbours_and_rows_are_uncorrelated(choose: Way, number: int):
    stays = choose(SHAPE, seed_of(number), 0.1).flatten()
    for shift in (1, 2, 3, 16, 64, 128, 768, 1_000, 1_024, 4_096, 65_536):
        assert abs(correlation(stays[shift:], stays[:-shift])) < DEVIATIONS / math.sqrt(NUM - shift)


@every_way
def test_different_seeds_are_uncorrelated(choose: Way):
    first = choose(SHAPE, seed_of(0), 0.1)
    for other in (1, 2, 3, 256, 65_536, 2**30, -1, -(2**31)):
        assert abs(correlation(first, choose(SHAPE, seed_of(other), 0.1))) < DEVIATIONS / math.sqrt(NUM)


@every_way
def test_a_seed_moved_by_some_values_does_not_repeat_the_pattern_moved(choose: Way):
    """The rows of a ragged batch take the seed plus their first piece: a sum of number and seed would repeat itself."""
    first = choose(SHAPE, seed_of(7), 0.1).flatten()
    for shift in (1, 2, 7, 64, 128, 1_000):
        other = choose(SHAPE, seed_of(7 + shift), 0.1).flatten()
        assert abs(correlation(first[shift:], other[:-shift])) < DEVIATIONS / math.sqrt(NUM - shift)


@every_way
def test_the_places_of_a_network_are_uncorrelated_in_one_step_and_the_next(choose: Way):
    step, following = DropoutSeeds(seed_of(99)), DropoutSeeds(seed_of(100))
    first = choose(SHAPE, step.seed_for(0), 0.1)
    others = [choose(SHAPE, seeds.seed_for(place), 0.1) for seeds in (step, following) for place in (1, 2, 3, 4, 36)]
    for other in others:
        assert abs(correlation(first, other)) < DEVIATIONS / math.sqrt(NUM)


def test_what_stays_is_scaled_up_so_that_the_mean_remains():
    found = dropout(torch.ones(SHAPE), seed_of(5), 0.1)
    assert found.unique().tolist() == [0.0, pytest.approx(1 / 0.9)]
    # The mean of values that are 1/0.9 or 0 deviates by sqrt(0.1 / 0.9 / a million) = 0.00033.
    assert abs(float(found.mean()) - 1) < DEVIATIONS * 0.000334


def test_the_gradient_is_the_mask_scaled_up():
    values = torch.linspace(-1, 1, 5_000).view(50, 100).requires_grad_()
    dropout(values, seed_of(5), 0.25).sum().backward()
    stays = dropout_mask(torch.Size((50, 100)), seed_of(5), 0.25)
    assert values.grad is not None
    assert torch.equal(values.grad, stays * (1 / 0.75))


@every_way
def test_the_same_seed_drops_the_same_whatever_the_threads_and_the_shape(choose: Way):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = choose(SHAPE, seed_of(11), 0.1)
        torch.set_num_threads(4)
        four = choose(SHAPE, seed_of(11), 0.1)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one, four)
    assert torch.equal(one.flatten(), choose(torch.Size((NUM,)), seed_of(11), 0.1))


def test_the_hash_decides_as_worked_out_with_plain_integers():
    """A run that is resumed by a later version goes on the same."""
    word = 2**32

    def mixed(number: int) -> int:
        number = (number ^ (number >> 16)) * 0x7FEB352D % word
        number = (number ^ (number >> 15)) * 0x846CA68B % word
        return number ^ (number >> 16)

    def stays(place: int, seed: int, rate: float) -> bool:
        number = mixed(mixed((place + seed) % word) ^ seed % word)
        signed = number - word if number >= word // 2 else number
        return signed >= round(rate * word) - word // 2

    for seed in (0, 42, -7):
        expected = [stays(place, seed, 0.3) for place in range(2_000)]
        assert _hash_mask(torch.Size((2_000,)), seed_of(seed), 0.3).tolist() == expected


def test_philox_decides_by_sixteen_bits_a_value_lowest_first():
    """At a rate of 1/4 a value goes whose sixteen bits, read with their sign, lie below -32768 + 16384."""
    for seed in (0, 42, -7):
        words = [int(word) for word in np.random.Philox(key=seed % 2**32).random_raw(250)]
        bits = [(word >> shift) & 0xFFFF for word in words for shift in (0, 16, 32, 48)]
        expected = [(number if number < 2**15 else number - 2**16) >= -16_384 for number in bits]
        assert dropout_mask(torch.Size((999,)), seed_of(seed), 0.25).tolist() == expected[:999]


def test_without_a_seed_or_a_rate_values_come_back_as_they_are():
    values = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    assert dropout(values, None, 0.1) is values
    assert dropout(values, seed_of(1), 0.0) is values
