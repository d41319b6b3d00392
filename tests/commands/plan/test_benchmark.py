"""Trials: their recipe and size, that real steps are timed within the limit, and how their time scales."""

from dataclasses import replace

import pytest
from small_run import RECIPE, prepare_corpus

from bertworks.commands.plan import benchmark
from bertworks.commands.plan.benchmark import DeviceBenchmark, StepTiming, num_trial_sequences, trial_of
from bertworks.commands.plan.forecast import step_flops
from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.corpus.corpus import Corpus
from bertworks.encoders.bert import BertConfig

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.open(prepare_corpus(tmp_path_factory.mktemp("benchmark")))


def test_forward_and_backward_time_scale_with_the_batch_size_and_the_optimizer_does_not():
    timing = StepTiming(
        max_length=128,
        num_sequences=4,
        tokens_per_sequence=120.0,
        forward_backward_seconds=0.5,
        optimizer_seconds=0.25,
        num_steps=3,
    )
    assert timing.step_seconds(4) == 0.75
    assert timing.step_seconds(32) == 4.25


def test_trial_is_the_recipe_with_one_phase_and_a_small_batch():
    trial = trial_of(PretrainRecipe(batch_size=256, learning_rate=3e-4, budget="2h"), 512, 2, 900, 20.0)
    assert (trial.max_length, trial.vocab_size, trial.seconds) == (512, 900, 20.0)
    assert (trial.recipe.batch_size, trial.recipe.micro_batch_size, trial.recipe.budget) == (2, 2, "")
    assert trial.recipe.learning_rate == 3e-4
    assert [phase.max_length for phase in trial.recipe.phases] == [512]


def test_trial_size_is_halved_until_two_steps_fit_into_the_time():
    base = BertConfig.from_preset("base", 30_522)
    # At 40 % of this throughput a step of 8 sequences takes half of the 10 seconds.
    throughput = 2 * 8 * step_flops(base, 1, 128) / 0.4 / 10.0
    assert num_trial_sequences(base, 256, 128, 1.001 * throughput, 10.0) == 8
    assert num_trial_sequences(base, 256, 128, 0.999 * throughput, 10.0) == 4
    assert num_trial_sequences(base, 256, 128, 1e18, 10.0) == 256


def test_trial_has_at_least_512_tokens():
    base = BertConfig.from_preset("base", 30_522)
    assert num_trial_sequences(base, 256, 128, 1.0, 1.0) == 4
    assert num_trial_sequences(base, 256, 512, 1.0, 1.0) == 1
    assert num_trial_sequences(base, 2, 128, 1.0, 1.0) == 2


@pytest.mark.parametrize("objective", ["mlm-nsp", "mlm"])
def test_trial_without_a_corpus_uses_random_tokens(objective: str):
    recipe = replace(RECIPE, objective=objective)
    timing = DeviceBenchmark().time_steps(trial_of(recipe, 32, 3, 50, 60.0), None)
    assert (timing.max_length, timing.num_sequences, timing.tokens_per_sequence) == (32, 3, 32.0)
    assert timing.num_steps == 20  # the maximum, in less than its minute
    assert timing.forward_backward_seconds > 0
    assert timing.optimizer_seconds > 0


def test_trial_with_a_corpus_counts_tokens_without_padding(corpus: Corpus):
    timing = DeviceBenchmark().time_steps(trial_of(RECIPE, 32, 4, corpus.tokenizer.vocab_size, 60.0), corpus)
    assert 16 < timing.tokens_per_sequence < 32  # sentences of at most nine tokens rarely fill a sequence


@pytest.mark.parametrize("precision", ["auto", "fp32", "bf16"])
def test_trial_without_time_does_one_step(corpus: Corpus, precision: str):
    recipe = replace(RECIPE, precision=precision)
    timing = DeviceBenchmark().time_steps(trial_of(recipe, 16, 2, corpus.tokenizer.vocab_size, 0.0), corpus)
    assert timing.num_steps == 1
    assert timing.step_seconds(2) > 0


def test_matmul_throughput_counts_two_flops_per_multiply_add(monkeypatch: pytest.MonkeyPatch):
    clock = iter([0.0, 2.0, 10.0, 11.0, 20.0, 24.0, 30.0, 32.0])
    monkeypatch.setattr(benchmark, "_MATRIX_SIZE", 8)
    monkeypatch.setattr(benchmark.time, "perf_counter", lambda: next(clock))
    assert DeviceBenchmark().matmul_throughput() == 2 * 8**3 / 1.0  # the fastest of four took a second
