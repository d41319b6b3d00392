"""What a recipe takes, on a machine whose speed is known: days by hand, here and on stated hardware."""

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

LOTS = 2**40
BASE = BertConfig.from_preset("base", 30_522)
PAPER_FLOPS = 900_000 * step_flops(BASE, 256, 128) + 100_000 * step_flops(BASE, 256, 512)


def shipped(name: str) -> PretrainRecipe:
    return read_recipe(recipe_path(name), PretrainRecipe)


def test_the_papers_base_is_scaled_from_a_few_rows():
    # A row takes 0.128 s at 128 and 0.64 s at 512, so 256 of them and the optimizer 32.868 s and 163.94 s.
    speed = KnownSpeed(rate=1e11)
    found = estimate(EstimateRequest(shipped("paper-base"), memory=LOTS), speed)
    assert [(phase.max_length, phase.steps) for phase in found.phases] == [(128, 900_000), (512, 100_000)]
    assert [phase.step_seconds for phase in found.phases] == pytest.approx([32.868, 163.94])
    assert found.days == pytest.approx((900_000 * 32.868 + 100_000 * 163.94) / 86_400)  # 532 days
    assert found.steps == 1_000_000
    assert found.num_tokens == pytest.approx(0.9 * 256 * (900_000 * 128 + 100_000 * 512))
    assert found.flops == pytest.approx(PAPER_FLOPS)
    assert [trial.recipe.batch_size for trial in speed.trials] == [4, 1]
    assert (found.epochs, found.loss) == (None, None)


def test_the_papers_runs_are_told_beside_what_it_published():
    base = estimate(EstimateRequest(shipped("paper-base"), memory=LOTS), KnownSpeed())
    large = estimate(EstimateRequest(shipped("paper-large"), memory=LOTS), KnownSpeed())
    assert base.paper_reference == "the paper: 4 days on 16 TPU chips"
    assert large.paper_reference == "the paper: 4 days on 64 TPU chips"
    other = replace(shipped("paper-base"), model=ModelRecipe("base", num_hidden_layers=6))
    for recipe in (shipped("base"), shipped("mini"), other):
        assert estimate(EstimateRequest(recipe, memory=LOTS), KnownSpeed()).paper_reference == ""


def test_days_elsewhere_follow_from_the_rate():
    # Ten devices that reach half of 1e15 operations a second.
    asked = (hardware_from_flops(1e15, 10, 0.5), parse_hardware("8xA100"))
    found = estimate(EstimateRequest(shipped("paper-base"), hardware=asked, memory=LOTS), KnownSpeed())
    assert [one.days for one in found.hardware] == pytest.approx(
        [PAPER_FLOPS / 5e15 / 86_400, PAPER_FLOPS / (8 * 312e12 * 0.28) / 86_400]
    )
    assert found.hardware[0].micro_batch_size is None  # nobody said how much memory it has
    assert found.hardware[1].micro_batch_size == 32  # a share of the batch of 256 fits whole


def test_without_a_wish_a_few_machines_are_told():
    found = estimate(EstimateRequest(shipped("paper-base"), memory=LOTS), KnownSpeed())
    assert [one.name for one in found.hardware] == ["16xTPUv2", "64xTPUv2", "1xA100", "8xA100"]
    small = estimate(EstimateRequest(shipped("mini"), memory=LOTS), KnownSpeed())
    assert [one.name for one in small.hardware] == ["16xTPUv2", "1xA100", "8xA100"]  # 64 cannot share a batch of 32


def test_a_device_too_small_for_one_example_is_told_so():
    huge = replace(
        shipped("paper-large"),
        model=ModelRecipe("large", num_hidden_layers=96, hidden_size=2048, num_attention_heads=16),
    )
    found = estimate(EstimateRequest(huge, hardware=(parse_hardware("1xT4"),), memory=LOTS), KnownSpeed())
    assert found.hardware[0].micro_batch_size == 0


def test_more_devices_than_examples_are_refused():
    with pytest.raises(SettingsError, match="at most 256 devices"):
        estimate(
            EstimateRequest(shipped("paper-base"), hardware=(parse_hardware("257xA100"),), memory=LOTS), KnownSpeed()
        )


def test_a_recipe_with_a_time_budget_takes_that_time():
    # mini: 32 * 0.004 + 0.1 s a step at 128
    recipe = PretrainRecipe(
        ModelRecipe("mini"), batch_size=32, budget="5m", phases=(PhaseRecipe(128, budget_ratio=1.0),)
    )
    found = estimate(EstimateRequest(recipe, memory=LOTS), KnownSpeed())
    assert found.steps == int(300 / 0.228)
    assert found.days == pytest.approx(300 / 86_400, rel=0.01)


def test_only_rows_that_fit_are_tried_and_nothing_that_does_not():
    memory = int(step_bytes(BASE, 8, 512) / 0.8) + 1000
    speed = KnownSpeed(rate=1e18)
    found = estimate(EstimateRequest(shipped("paper-base"), memory=memory), speed)
    assert found.micro_batch_size == 8
    assert found.memory == step_bytes(BASE, 8, 512)
    assert [trial.recipe.batch_size for trial in speed.trials] == [8, 8]
    with pytest.raises(SettingsError, match="one example of length 512 needs about"):
        estimate(EstimateRequest(shipped("paper-base"), memory=2**30), speed)


def test_a_corpus_gives_its_vocabulary_epochs_and_a_forecast_loss(tmp_path: Path):
    folder = prepare_corpus(tmp_path)
    recipe = PretrainRecipe(ModelRecipe("tiny"), batch_size=32, warmup_steps=1, phases=(PhaseRecipe(128, 1000, 1.0),))
    found = estimate(EstimateRequest(recipe, folder, memory=LOTS), KnownSpeed())
    corpus = Corpus.open(folder)
    assert found.vocab_size == corpus.tokenizer.vocab_size
    assert found.epochs == pytest.approx(1000 * 32 * 115.2 / corpus.split("train").num_tokens)
    assert found.loss is not None
    assert 0 < found.loss.low < found.loss.middle < found.loss.high
