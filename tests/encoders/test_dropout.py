"""Dropout, by hash and by Philox: probability, independence of neighbors, rows and seeds, gradient, repeatability."""

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
# With this number of seeds and shifts, chance alone stays within five standard deviations.
DEVIATIONS = 5
# The implementations for plain calls on a CPU and for compiled layers.
MASK_FUNCTIONS = {"plain": dropout_mask, "compiled": _hash_mask}
MaskFunction = Callable[[torch.Size, torch.Tensor, float], torch.Tensor]
both_functions = pytest.mark.parametrize("make_mask", MASK_FUNCTIONS.values(), ids=MASK_FUNCTIONS)


pytestmark = pytest.mark.usefixtures("one_thread")


def seed_of(number: int) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.int32)


def correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    """The correlation of two equally long masks; of independent ones, about 1 / sqrt(how many) from zero."""
    one, other = one != 0, other != 0
    first, second, both = (int(values.count_nonzero()) / values.numel() for values in (one, other, one & other))
    return (both - first * second) / math.sqrt(first * (1 - first) * second * (1 - second))


@both_functions
@pytest.mark.parametrize("dropout_prob", [0.1, 0.5, 0.01])
@pytest.mark.parametrize("number", SEEDS)
def test_values_are_dropped_with_the_given_probability(make_mask: MaskFunction, number: int, dropout_prob: float):
    dropped = int((make_mask(SHAPE, seed_of(number), dropout_prob) == 0).sum())
    assert abs(dropped - dropout_prob * NUM) < DEVIATIONS * math.sqrt(NUM * dropout_prob * (1 - dropout_prob))


@both_functions
@pytest.mark.parametrize("dimension", [0, 1])
def test_every_row_and_column_has_the_given_probability(make_mask: MaskFunction, dimension: int):
    """The 1,000 sums of rows vary as sums of 1,000 independent samples: variance 90, known to 5 * 4.5 %."""
    sums = (make_mask(SHAPE, seed_of(3), 0.1) == 0).sum(dimension).double()
    assert abs(float(sums.var()) - 90) < DEVIATIONS * 0.045 * 90
    assert float((sums - 100).abs().max()) < 6 * math.sqrt(90)


@both_functions
@pytest.mark.parametrize("number", SEEDS[:4])
def test_neighbors_and_rows_are_uncorrelated(make_mask: MaskFunction, number: int):
    mask = make_mask(SHAPE, seed_of(number), 0.1).flatten()
    for shift in (1, 2, 3, 16, 64, 128, 768, 1_000, 1_024, 4_096, 65_536):
        assert abs(correlation(mask[shift:], mask[:-shift])) < DEVIATIONS / math.sqrt(NUM - shift)


@both_functions
def test_different_seeds_are_uncorrelated(make_mask: MaskFunction):
    first = make_mask(SHAPE, seed_of(0), 0.1)
    for other in (1, 2, 3, 256, 65_536, 2**30, -1, -(2**31)):
        assert abs(correlation(first, make_mask(SHAPE, seed_of(other), 0.1))) < DEVIATIONS / math.sqrt(NUM)


@both_functions
def test_a_shifted_seed_does_not_shift_the_mask(make_mask: MaskFunction):
    """The groups of a packed batch use the seed plus their first token index; a sum of index and seed would repeat."""
    first = make_mask(SHAPE, seed_of(7), 0.1).flatten()
    for shift in (1, 2, 7, 64, 128, 1_000):
        other = make_mask(SHAPE, seed_of(7 + shift), 0.1).flatten()
        assert abs(correlation(first[shift:], other[:-shift])) < DEVIATIONS / math.sqrt(NUM - shift)


@both_functions
def test_the_dropouts_of_a_network_are_uncorrelated_within_and_between_steps(make_mask: MaskFunction):
    step, following = DropoutSeeds(seed_of(99)), DropoutSeeds(seed_of(100))
    first = make_mask(SHAPE, step.seed_for(0), 0.1)
    others = [make_mask(SHAPE, seeds.seed_for(index), 0.1) for seeds in (step, following) for index in (1, 2, 3, 4, 36)]
    for other in others:
        assert abs(correlation(first, other)) < DEVIATIONS / math.sqrt(NUM)


def test_remaining_values_are_scaled_up_so_that_the_mean_is_kept():
    result = dropout(torch.ones(SHAPE), seed_of(5), 0.1)
    assert result.unique().tolist() == [0.0, pytest.approx(1 / 0.9)]
    # The mean of values that are 1/0.9 or 0 deviates by sqrt(0.1 / 0.9 / a million) = 0.00033.
    assert abs(float(result.mean()) - 1) < DEVIATIONS * 0.000334


def test_the_gradient_is_the_scaled_mask():
    values = torch.linspace(-1, 1, 5_000).view(50, 100).requires_grad_()
    dropout(values, seed_of(5), 0.25).sum().backward()
    mask = dropout_mask(torch.Size((50, 100)), seed_of(5), 0.25)
    assert values.grad is not None
    assert torch.equal(values.grad, mask.float() * (1 / 0.75))


@both_functions
def test_the_mask_depends_on_the_seed_and_not_on_threads_or_shape(make_mask: MaskFunction):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = make_mask(SHAPE, seed_of(11), 0.1)
        torch.set_num_threads(4)
        four = make_mask(SHAPE, seed_of(11), 0.1)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one, four)
    assert torch.equal(one.flatten(), make_mask(torch.Size((NUM,)), seed_of(11), 0.1))


def test_the_hash_equals_its_definition_in_integers():
    """A run that is resumed by a later version must drop the same values."""
    word = 2**32

    def mix(bits: int) -> int:
        bits = (bits ^ (bits >> 16)) * 0x7FEB352D % word
        bits = (bits ^ (bits >> 15)) * 0x846CA68B % word
        return bits ^ (bits >> 16)

    def is_kept(index: int, seed: int, dropout_prob: float) -> bool:
        bits = mix(mix((index + seed) % word) ^ seed % word)
        signed = bits - word if bits >= word // 2 else bits
        return signed >= round(dropout_prob * word) - word // 2

    for seed in (0, 42, -7):
        expected = [is_kept(index, seed, 0.3) for index in range(2_000)]
        assert _hash_mask(torch.Size((2_000,)), seed_of(seed), 0.3).tolist() == expected


def test_philox_uses_sixteen_bits_a_value_lowest_first():
    """With probability 1/4 a value is dropped whose sixteen bits, as a signed number, are below -32768 + 16384."""
    for seed in (0, 42, -7):
        words = [int(word) for word in np.random.Philox(key=seed % 2**32).random_raw(250)]
        bits = [(word >> shift) & 0xFFFF for word in words for shift in (0, 16, 32, 48)]
        expected = [(number if number < 2**15 else number - 2**16) >= -16_384 for number in bits]
        assert dropout_mask(torch.Size((999,)), seed_of(seed), 0.25).tolist() == expected[:999]


def test_without_a_seed_or_a_probability_values_are_unchanged():
    values = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    assert dropout(values, None, 0.1) is values
    assert dropout(values, seed_of(1), 0.0) is values
