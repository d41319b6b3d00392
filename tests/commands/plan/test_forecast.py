"""What a run costs and comes to: operations, repeated text and losses, worked out by hand."""

import math

import pytest

from bertworks.commands.plan.forecast import (
    PAPER_ENTROPY,
    RANDOM_INIT_CURVE,
    effective_tokens,
    forecast_loss,
    layer_parameters,
    step_flops,
)
from bertworks.encoders.bert import Bert, BertConfig

BASE = BertConfig.from_preset("base", 30_522)


def test_operations_of_a_step_are_those_of_its_products():
    # A layer: 2 * 23 * (4 * 16 + 2 * 32) for its four products and the inner two, 4 * 23 * 23 * 4 for reading.
    # Heads: round(0.15 * 20) = 3 places, each 2 * (16 + 4 * 10); 2 * 16 for the pooler. All three times.
    sizes = BertConfig(10, 4, 2, 2, 8)
    assert step_flops(sizes, 1, 23) == 3 * (2 * (5888 + 8464) + 336 + 32)
    assert step_flops(sizes, 5, 23) == 5 * step_flops(sizes, 1, 23)


def test_base_at_128_takes_about_six_operations_a_parameter_and_piece():
    ratio = step_flops(BASE, 256, 128) / (6 * 85_054_464 * 256 * 128)
    assert 1.05 < ratio < 1.08  # attention and the head of hidden places come on top


@pytest.mark.parametrize("sizes", [BASE, BertConfig(30, 12, 3, 2, 20, 16)])
def test_parameters_of_the_layers_are_counted_as_they_are_built(sizes: BertConfig):
    if sizes is BASE:
        assert layer_parameters(sizes) == 85_054_464
    else:
        assert layer_parameters(sizes) == sum(one.numel() for one in Bert(sizes).layers.parameters())


def test_text_is_worth_less_each_time_it_is_seen_again():
    assert effective_tokens(80, 100) == 80
    assert effective_tokens(100, 100) == 100
    assert effective_tokens(200, 100) == pytest.approx(100 * (1 + 15 * (1 - math.exp(-1 / 15))))  # 196.7
    assert effective_tokens(1e9, 100) == pytest.approx(1600)


def test_a_run_begins_at_the_unigram_entropy():
    loss = forecast_loss(BASE, 0, 6.5)
    assert (loss.low, loss.middle, loss.high) == (6.5, 6.5, 6.5)


@pytest.mark.parametrize(
    ("num_layers", "width", "perplexity"),
    [(3, 768, 5.84), (6, 768, 4.68), (12, 768, 3.99), (12, 1024, 3.54), (24, 1024, 3.23)],
)
def test_an_endless_run_ends_within_three_percent_of_the_papers_losses(num_layers: int, width: int, perplexity: float):
    sizes = BertConfig(30_522, width, num_layers, width // 64, 4 * width)
    assert forecast_loss(sizes, 1e30, PAPER_ENTROPY).middle == pytest.approx(math.log(perplexity), rel=0.03)


def test_the_papers_million_steps_end_within_a_tenth_of_its_loss():
    pieces = 256 * (900_000 * 128 + 100_000 * 512)
    assert forecast_loss(BASE, pieces, PAPER_ENTROPY).middle == pytest.approx(math.log(3.99), rel=0.1)


def test_half_of_the_way_is_done_where_the_power_of_the_pieces_is_a_half():
    pieces = RANDOM_INIT_CURVE.onset_tokens * (2 ** (1 / RANDOM_INIT_CURVE.exponent) - 1)
    end = forecast_loss(BASE, 1e30, 7.0).middle
    assert forecast_loss(BASE, pieces, 7.0).middle == pytest.approx((7.0 + end) / 2, rel=1e-6)


def test_the_band_is_the_loss_of_a_quarter_and_of_four_times_the_pieces():
    loss = forecast_loss(BASE, 40e6, 7.0)
    assert loss.low == forecast_loss(BASE, 160e6, 7.0).middle
    assert loss.high == forecast_loss(BASE, 10e6, 7.0).middle
    assert loss.low < loss.middle < loss.high < 7.0


def test_a_larger_model_ends_lower_but_one_that_saw_far_less_does_not():
    mini, small = (BertConfig.from_preset(size, 8192) for size in ("mini", "small"))
    assert forecast_loss(small, 1e8, 6.5).middle < forecast_loss(mini, 1e8, 6.5).middle
    assert forecast_loss(small, 1e6, 6.5).middle > forecast_loss(mini, 1e8, 6.5).middle


def test_even_the_smallest_model_learns_something():
    assert forecast_loss(BertConfig(20, 2, 1, 1, 2), 1e30, 3.0).middle == pytest.approx(0.95 * 3.0)


@pytest.mark.parametrize(("pieces", "measured"), [(1.0e6, 5.42), (2.05e6, 5.03), (3.07e6, 4.78), (9.9e6, 4.17)])
def test_the_head_start_is_forecast_as_it_was_measured(pieces: float, measured: float):
    mini = BertConfig.from_preset("mini", 8192)
    assert forecast_loss(mini, pieces, 6.54, "neighbours").middle == pytest.approx(measured, rel=0.01)


def test_the_head_start_helps_at_first_and_never_harms():
    for pieces in (1e6, 1e7, 1e8):
        assert forecast_loss(BASE, pieces, 7.0, "neighbours").middle < forecast_loss(BASE, pieces, 7.0).middle
    assert forecast_loss(BASE, 1e9, 7.0, "neighbours") == forecast_loss(BASE, 1e9, 7.0)
