"""Trials: what is tried, that real steps are done within the limit, and how their seconds scale to a batch."""

from dataclasses import replace

import pytest
from small_run import RECIPE, prepare_corpus

from bertworks.commands.plan import benchmark as measuring
from bertworks.commands.plan.benchmark import DeviceBenchmark, StepTiming, num_trial_sequences, trial_of
from bertworks.commands.plan.forecast import step_flops
from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.corpus.corpus import Corpus
from bertworks.encoders.bert import BertConfig

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.open(prepare_corpus(tmp_path_factory.mktemp("measuring")))


def test_a_step_scales_its_passes_by_the_batch_and_not_the_optimizer():
    speed = StepTiming(
        128,
        num_sequences=4,
        tokens_per_sequence=120.0,
        forward_backward_seconds=0.5,
        optimizer_seconds=0.25,
        num_steps=3,
    )
    assert speed.step_seconds(4) == 0.75
    assert speed.step_seconds(32) == 4.25


def test_a_trial_is_the_recipe_with_one_phase_of_a_few_rows():
    trial = trial_of(PretrainRecipe(batch_size=256, learning_rate=3e-4, budget="2h"), 512, 2, 900, 20.0)
    assert (trial.max_length, trial.vocab_size, trial.seconds) == (512, 900, 20.0)
    assert (trial.recipe.batch_size, trial.recipe.micro_batch_size, trial.recipe.budget) == (2, 2, "")
    assert trial.recipe.learning_rate == 3e-4
    assert [phase.max_length for phase in trial.recipe.phases] == [512]


def test_rows_are_halved_until_two_steps_fit_into_the_time():
    base = BertConfig.from_preset("base", 30_522)
    row = step_flops(base, 1, 128)  # a step of 8 rows at 40 % of this rate takes half of the 10 seconds
    rate = 2 * 8 * row / 0.4 / 10.0
    assert num_trial_sequences(base, 256, 128, 1.001 * rate, 10.0) == 8
    assert num_trial_sequences(base, 256, 128, 0.999 * rate, 10.0) == 4
    assert num_trial_sequences(base, 256, 128, 1e18, 10.0) == 256


def test_rows_of_less_than_512_pieces_are_never_tried_instead_of_more():
    base = BertConfig.from_preset("base", 30_522)
    assert num_trial_sequences(base, 256, 128, 1.0, 1.0) == 4
    assert num_trial_sequences(base, 256, 512, 1.0, 1.0) == 1
    assert num_trial_sequences(base, 2, 128, 1.0, 1.0) == 2


@pytest.mark.parametrize("objective", ["masked-next", "masked"])
def test_without_a_corpus_full_rows_of_random_pieces_are_tried(objective: str):
    recipe = replace(RECIPE, objective=objective)
    speed = DeviceBenchmark().time_steps(trial_of(recipe, 32, 3, 50, 60.0), None)
    assert (speed.max_length, speed.num_sequences, speed.tokens_per_sequence) == (32, 3, 32.0)
    assert speed.num_steps == 20  # it did not need its minute
    assert speed.forward_backward_seconds > 0
    assert speed.optimizer_seconds > 0


def test_with_a_corpus_its_rows_are_tried_and_their_real_pieces_counted(corpus: Corpus):
    speed = DeviceBenchmark().time_steps(trial_of(RECIPE, 32, 4, corpus.tokenizer.vocab_size, 60.0), corpus)
    assert 16 < speed.tokens_per_sequence < 32  # sentences of at most nine pieces rarely fill a row to the last place


def test_a_trial_without_time_still_does_one_step(corpus: Corpus):
    speed = DeviceBenchmark().time_steps(trial_of(RECIPE, 16, 2, corpus.tokenizer.vocab_size, 0.0), corpus)
    assert speed.num_steps == 1
    assert speed.step_seconds(2) > 0


def test_the_rate_of_a_product_counts_two_operations_for_each_of_its_terms(monkeypatch: pytest.MonkeyPatch):
    clock = iter([0.0, 2.0, 10.0, 11.0, 20.0, 24.0, 30.0, 32.0])
    monkeypatch.setattr(measuring, "_MATRIX_SIZE", 8)
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: next(clock))
    assert DeviceBenchmark().matmul_throughput() == 2 * 8**3 / 1.0  # the fastest of four took a second
