"""The cost of a recipe on a machine with known speed: days worked out by hand, here and on specified hardware."""

from dataclasses import replace
from pathlib import Path

import pytest
from known_speed import KnownSpeed
from small_run import prepare_corpus

from bertworks.commands.plan.estimate import EstimateRequest, estimate
from bertworks.commands.plan.forecast import step_flops
from bertworks.commands.plan.hardware import hardware_from_flops, parse_hardware
from bertworks.commands.pretrain.recipe import ModelRecipe, PhaseRecipe, PretrainRecipe
from bertworks.corpus.corpus import Corpus
from bertworks.encoders.bert import BertConfig
from bertworks.errors import SettingsError
from bertworks.settings import read_recipe, recipe_path
from bertworks.training.memory import step_bytes

LARGE_MEMORY = 2**40
BASE = BertConfig.from_preset("base", 30_522)
PAPER_FLOPS = 900_000 * step_flops(BASE, 256, 128) + 100_000 * step_flops(BASE, 256, 512)


def built_in(name: str) -> PretrainRecipe:
    return read_recipe(recipe_path(name), PretrainRecipe)


def test_paper_recipe_is_scaled_from_a_few_sequences():
    # A sequence takes 0.128 s at 128 and 0.64 s at 512, so a step of 256 takes 32.868 s and 163.94 s.
    speed = KnownSpeed(throughput=1e11)
    result = estimate(EstimateRequest(recipe=built_in("paper-base"), memory=LARGE_MEMORY), speed)
    assert [(phase.max_length, phase.steps) for phase in result.phases] == [(128, 900_000), (512, 100_000)]
    assert [phase.step_seconds for phase in result.phases] == pytest.approx([32.868, 163.94])
    assert result.days == pytest.approx((900_000 * 32.868 + 100_000 * 163.94) / 86_400)  # 532 days
    assert result.steps == 1_000_000
    assert result.num_tokens == pytest.approx(0.9 * 256 * (900_000 * 128 + 100_000 * 512))
    assert result.flops == pytest.approx(PAPER_FLOPS)
    assert [trial.recipe.batch_size for trial in speed.trials] == [4, 1]
    assert (result.epochs, result.loss) == (None, None)


def test_paper_runs_quote_the_published_time():
    base = estimate(EstimateRequest(recipe=built_in("paper-base"), memory=LARGE_MEMORY), KnownSpeed())
    large = estimate(EstimateRequest(recipe=built_in("paper-large"), memory=LARGE_MEMORY), KnownSpeed())
    assert base.paper_reference == "the paper: 4 days on 16 TPU chips"
    assert large.paper_reference == "the paper: 4 days on 64 TPU chips"
    other = replace(built_in("paper-base"), model=ModelRecipe(size="base", num_hidden_layers=6))
    for recipe in (built_in("base"), built_in("mini"), other):
        assert estimate(EstimateRequest(recipe=recipe, memory=LARGE_MEMORY), KnownSpeed()).paper_reference == ""


def test_days_on_hardware_follow_from_its_flops():
    # Ten devices that reach half of 1e15 FLOP/s.
    hardware = (hardware_from_flops(1e15, 10, 0.5), parse_hardware("8xA100"))
    result = estimate(
        EstimateRequest(recipe=built_in("paper-base"), hardware=hardware, memory=LARGE_MEMORY), KnownSpeed()
    )
    assert [cost.days for cost in result.hardware] == pytest.approx(
        [PAPER_FLOPS / 5e15 / 86_400, PAPER_FLOPS / (8 * 312e12 * 0.28) / 86_400]
    )
    assert result.hardware[0].micro_batch_size is None  # its memory is not known
    assert result.hardware[1].micro_batch_size == 32  # 256 / 8 examples fit


def test_default_hardware():
    result = estimate(EstimateRequest(recipe=built_in("paper-base"), memory=LARGE_MEMORY), KnownSpeed())
    assert [cost.name for cost in result.hardware] == ["16xTPUv2", "64xTPUv2", "1xA100", "8xA100"]
    small = estimate(EstimateRequest(recipe=built_in("mini"), memory=LARGE_MEMORY), KnownSpeed())
    assert [cost.name for cost in small.hardware] == [
        "16xTPUv2",
        "1xA100",
        "8xA100",
    ]  # a batch of 32 cannot be split over 64


def test_device_too_small_for_one_example_has_micro_batch_size_0():
    huge = replace(
        built_in("paper-large"),
        model=ModelRecipe(size="large", num_hidden_layers=96, hidden_size=2048, num_attention_heads=16),
    )
    result = estimate(
        EstimateRequest(recipe=huge, hardware=(parse_hardware("1xT4"),), memory=LARGE_MEMORY), KnownSpeed()
    )
    assert result.hardware[0].micro_batch_size == 0


def test_more_devices_than_examples_are_refused():
    with pytest.raises(SettingsError, match="at most 256 devices"):
        estimate(
            EstimateRequest(recipe=built_in("paper-base"), hardware=(parse_hardware("257xA100"),), memory=LARGE_MEMORY),
            KnownSpeed(),
        )


def test_recipe_with_a_time_budget_takes_that_time():
    # mini: 32 * 0.004 + 0.1 s per step at 128
    recipe = PretrainRecipe(
        model=ModelRecipe(size="mini"), batch_size=32, budget="5m", phases=(PhaseRecipe(128, budget_ratio=1.0),)
    )
    result = estimate(EstimateRequest(recipe=recipe, memory=LARGE_MEMORY), KnownSpeed())
    assert result.steps == int(300 / 0.228)
    assert result.days == pytest.approx(300 / 86_400, rel=0.01)


def test_phases_with_own_settings_are_estimated_separately():
    # mini at 128: 0.004 s per sequence and 0.1 s of the optimizer
    mini = BertConfig.from_preset("mini", 30_522)
    phases = (PhaseRecipe(128, steps=100, mask_prob=0.3, batch_size=16), PhaseRecipe(128, steps=50))
    recipe = PretrainRecipe(model=ModelRecipe(size="mini"), batch_size=32, warmup_steps=1, phases=phases)
    speed = KnownSpeed(throughput=1e18)
    result = estimate(EstimateRequest(recipe=recipe, memory=LARGE_MEMORY), speed)
    assert [(phase.name, phase.batch_size) for phase in result.phases] == [("128", 16), ("128 (2)", 32)]
    assert [phase.step_seconds for phase in result.phases] == pytest.approx([0.164, 0.228])
    assert [phase.flops for phase in result.phases] == pytest.approx(
        [100 * step_flops(mini, 16, 128, 0.3), 50 * step_flops(mini, 32, 128, 0.15)]
    )
    assert result.num_tokens == pytest.approx(0.9 * 128 * (100 * 16 + 50 * 32))
    assert [trial.recipe.batch_size for trial in speed.trials] == [16, 32]
    assert [trial.recipe.masking.mask_prob for trial in speed.trials] == [0.3, 0.15]


def test_trial_fits_into_memory_or_is_refused():
    memory = int(step_bytes(BASE, 8, 512) / 0.8) + 1000
    speed = KnownSpeed(throughput=1e18)
    result = estimate(EstimateRequest(recipe=built_in("paper-base"), memory=memory), speed)
    assert result.micro_batch_size == 8
    assert result.memory == step_bytes(BASE, 8, 512)
    assert [trial.recipe.batch_size for trial in speed.trials] == [8, 8]
    with pytest.raises(SettingsError, match="one example of length 512 needs about"):
        estimate(EstimateRequest(recipe=built_in("paper-base"), memory=2**30), speed)


def test_averaged_weights_leave_less_memory():
    memory = int(step_bytes(BASE, 8, 512) / 0.8) + 1000
    recipe = replace(built_in("paper-base"), ema_decay=0.99)
    result = estimate(EstimateRequest(recipe=recipe, memory=memory), KnownSpeed())
    assert result.micro_batch_size == 4
    assert result.memory == step_bytes(BASE, 4, 512) + 4 * 109_482_240


def test_corpus_gives_vocabulary_epochs_and_forecast_loss(tmp_path: Path):
    folder = prepare_corpus(tmp_path)
    recipe = PretrainRecipe(
        model=ModelRecipe(size="tiny"),
        batch_size=32,
        warmup_steps=1,
        phases=(PhaseRecipe(128, steps=1000, budget_ratio=1.0),),
    )
    result = estimate(EstimateRequest(recipe=recipe, corpus=folder, memory=LARGE_MEMORY), KnownSpeed())
    corpus = Corpus.open(folder)
    assert result.vocab_size == corpus.tokenizer.vocab_size
    assert result.epochs == pytest.approx(1000 * 32 * 115.2 / corpus.split("train").num_tokens)
    assert result.loss is not None
    assert 0 < result.loss.low < result.loss.middle < result.loss.high
