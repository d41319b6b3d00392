"""Forecasts: FLOPs, effective tokens of repeated text and losses, worked out by hand."""

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


def test_flops_of_a_step_are_those_of_its_matmuls():
    # A layer: 2 * 23 * (4 * 16 + 2 * 32) for the linear layers, 4 * 23 * 23 * 4 for attention scores and values.
    # Heads: round(0.15 * 20) = 3 masked tokens, each 2 * (16 + 4 * 10); 2 * 16 for the pooler. All times three.
    config = BertConfig(vocab_size=10, hidden_size=4, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
    assert step_flops(config, 1, 23) == 3 * (2 * (5888 + 8464) + 336 + 32)
    assert step_flops(config, 5, 23) == 5 * step_flops(config, 1, 23)


def test_base_at_128_takes_about_six_flops_per_parameter_and_token():
    ratio = step_flops(BASE, 256, 128) / (6 * 85_054_464 * 256 * 128)
    assert 1.05 < ratio < 1.08  # attention and the MLM head are added


def test_layer_parameters_equal_those_of_the_module():
    assert layer_parameters(BASE) == 85_054_464
    config = BertConfig(
        vocab_size=30,
        hidden_size=12,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=20,
        max_position_embeddings=16,
    )
    assert layer_parameters(config) == sum(parameter.numel() for parameter in Bert(config).layers.parameters())


def test_repeated_text_is_worth_less():
    assert effective_tokens(80, 100) == 80
    assert effective_tokens(100, 100) == 100
    assert effective_tokens(200, 100) == pytest.approx(100 * (1 + 15 * (1 - math.exp(-1 / 15))))  # 196.7
    assert effective_tokens(1e9, 100) == pytest.approx(1600)


def test_loss_starts_at_the_unigram_entropy():
    loss = forecast_loss(BASE, 0, 6.5)
    assert (loss.low, loss.middle, loss.high) == (6.5, 6.5, 6.5)


@pytest.mark.parametrize(
    ("num_layers", "hidden_size", "perplexity"),
    [(3, 768, 5.84), (6, 768, 4.68), (12, 768, 3.99), (12, 1024, 3.54), (24, 1024, 3.23)],
)
def test_final_loss_is_within_three_percent_of_the_paper_s(num_layers: int, hidden_size: int, perplexity: float):
    config = BertConfig(
        vocab_size=30_522,
        hidden_size=hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // 64,
        intermediate_size=4 * hidden_size,
    )
    assert forecast_loss(config, 1e30, PAPER_ENTROPY).middle == pytest.approx(math.log(perplexity), rel=0.03)


def test_loss_of_the_paper_s_run_is_within_ten_percent():
    num_tokens = 256 * (900_000 * 128 + 100_000 * 512)
    assert forecast_loss(BASE, num_tokens, PAPER_ENTROPY).middle == pytest.approx(math.log(3.99), rel=0.1)


def test_loss_is_halfway_where_the_power_law_is_one_half():
    num_tokens = RANDOM_INIT_CURVE.onset_tokens * (2 ** (1 / RANDOM_INIT_CURVE.exponent) - 1)
    final_loss = forecast_loss(BASE, 1e30, 7.0).middle
    assert forecast_loss(BASE, num_tokens, 7.0).middle == pytest.approx((7.0 + final_loss) / 2, rel=1e-6)


def test_band_is_the_loss_after_a_quarter_and_four_times_the_tokens():
    loss = forecast_loss(BASE, 40e6, 7.0)
    assert loss.low == forecast_loss(BASE, 160e6, 7.0).middle
    assert loss.high == forecast_loss(BASE, 10e6, 7.0).middle
    assert loss.low < loss.middle < loss.high < 7.0


def test_larger_model_has_a_lower_loss_at_equal_tokens():
    mini, small = (BertConfig.from_preset(size, 8192) for size in ("mini", "small"))
    assert forecast_loss(small, 1e8, 6.5).middle < forecast_loss(mini, 1e8, 6.5).middle
    assert forecast_loss(small, 1e6, 6.5).middle > forecast_loss(mini, 1e8, 6.5).middle


def test_smallest_model_learns_something():
    config = BertConfig(vocab_size=20, hidden_size=2, num_hidden_layers=1, num_attention_heads=1, intermediate_size=2)
    assert forecast_loss(config, 1e30, 3.0).middle == pytest.approx(0.95 * 3.0)


@pytest.mark.parametrize(("num_tokens", "loss"), [(1.0e6, 5.42), (2.05e6, 5.03), (3.07e6, 4.78), (9.9e6, 4.17)])
def test_neighbor_initialization_is_forecast_as_measured(num_tokens: float, loss: float):
    mini = BertConfig.from_preset("mini", 8192)
    assert forecast_loss(mini, num_tokens, 6.54, "neighbors").middle == pytest.approx(loss, rel=0.01)


def test_neighbor_initialization_helps_at_first_and_never_harms():
    for num_tokens in (1e6, 1e7, 1e8):
        assert forecast_loss(BASE, num_tokens, 7.0, "neighbors").middle < forecast_loss(BASE, num_tokens, 7.0).middle
    assert forecast_loss(BASE, 1e9, 7.0, "neighbors") == forecast_loss(BASE, 1e9, 7.0)
