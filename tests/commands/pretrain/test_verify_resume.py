"""Verification of exact resume: an exact run passes; of another, the first different tensor and step are named."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_run import RECIPE, prepare_corpus
from typer.testing import CliRunner

import bertworks.commands.pretrain.verify_resume as verify_resume_module
from bertworks.cli.verify_resume import app
from bertworks.commands.pretrain.batches import PretrainBatches
from bertworks.commands.pretrain.recipe import PhaseRecipe
from bertworks.commands.pretrain.verify_resume import (
    BATCH,
    Verdict,
    VerifyRequest,
    digest_of,
    shorten_recipe,
    verify_resume,
)
from bertworks.errors import BertworksError, SettingsError
from bertworks.sampling.batch import Batch
from bertworks.settings import to_toml
from bertworks.training.optimizer import BertAdam


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return prepare_corpus(tmp_path_factory.mktemp("verify"))


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setattr(verify_resume_module, "_run", run_on_one_thread)


run_unchanged = verify_resume_module._run


def run_on_one_thread(request, error_file):
    torch.set_num_threads(1)  # several threads slow a tiny model down
    run_unchanged(request, error_file)


def run_with_a_lost_moment(request, error_file):
    """Resume without the second moment of one tensor."""
    restore = BertAdam.restore

    def restore_without_moment(self, tensors, num_steps):
        (lost,) = (name for name in tensors if name.endswith("mlm_head.bias") and "sq" in name)
        restore(self, {**tensors, lost: torch.zeros_like(tensors[lost])}, num_steps)

    BertAdam.restore = restore_without_moment
    run_on_one_thread(request, error_file)


def run_with_restarted_batches(request, error_file):
    """Start with the first batch again in every process."""
    get_batches, steps = PretrainBatches.get_batches, []

    def get_batches_from_start(self, phase, step):
        steps.append(step)
        return get_batches(self, phase, max(0, step - steps[0]))

    PretrainBatches.get_batches = get_batches_from_start
    run_on_one_thread(request, error_file)


LONG_RECIPE = replace(RECIPE, batch_size=16, micro_batch_size=8)
NUM_STEPS = 48  # enough that a kill comes before the end, even on a busy machine


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_exact_resume_is_identical(corpus, precision):
    messages = []
    recipe = replace(LONG_RECIPE, precision=precision, schedule="wsd", ema_decay=0.9)
    verdict = verify_resume(
        VerifyRequest(recipe=recipe, corpus=corpus, num_steps=NUM_STEPS, num_kills=2), messages.append
    )
    assert verdict.first_difference is None
    assert verdict.num_kills == 2
    assert [text.rstrip("0123456789") for text in messages] == [
        f"{NUM_STEPS} steps uninterrupted",
        "killed after step ",
        "killed after step ",
        "running to the end",
    ]


def test_lost_optimizer_moment_is_named(corpus, monkeypatch):
    monkeypatch.setattr(verify_resume_module, "_run", run_with_a_lost_moment)
    verdict = verify_resume(VerifyRequest(recipe=LONG_RECIPE, corpus=corpus, num_steps=NUM_STEPS, num_kills=1))
    assert verdict.num_kills == 1
    step, name = verdict.first_difference
    assert name == "mlm_head.bias"
    assert step > 1


def test_different_batch_is_named(corpus, monkeypatch):
    monkeypatch.setattr(verify_resume_module, "_run", run_with_restarted_batches)
    verdict = verify_resume(VerifyRequest(recipe=LONG_RECIPE, corpus=corpus, num_steps=NUM_STEPS, num_kills=1))
    assert verdict.num_kills == 1
    assert verdict.first_difference[1] == BATCH


def test_error_of_the_run_is_raised(corpus):
    with pytest.raises(BertworksError, match="vocabulary 0123"):
        verify_resume(VerifyRequest(recipe=RECIPE, corpus=corpus, vocabulary="0123"))


def test_recipe_is_shortened_in_all_phases():
    recipe = replace(
        RECIPE, phases=(PhaseRecipe(16, steps=900_000), PhaseRecipe(32, steps=100_000)), warmup_steps=10_000
    )
    short = shorten_recipe(recipe, 30, 3)
    assert [phase.steps for phase in short.phases] == [27, 3]
    assert short.warmup_steps == 0  # a hundredth of 30 steps
    assert short.save_steps == 3


def test_shortened_phases_keep_their_own_settings():
    own = PhaseRecipe(16, steps=600, mask_prob=0.3, batch_size=4, learning_rate=2e-3)
    short = shorten_recipe(replace(RECIPE, phases=(own, PhaseRecipe(16, steps=300))), 30, 3)
    assert short.phases == (replace(own, steps=20), PhaseRecipe(16, steps=10))


def test_time_budget_becomes_steps():
    recipe = replace(RECIPE, budget="2h", warmup_ratio=0.1)
    short = shorten_recipe(recipe, 20, 1)
    assert short.budget == ""
    assert [phase.steps for phase in short.phases] == [14, 6]  # budget ratios of 0.7 and 0.3
    assert short.warmup_steps == 2


@pytest.mark.parametrize(("num_steps", "num_kills"), [(1, 1), (3, 3), (30, 0)])
def test_too_few_steps_or_kills_are_refused(num_steps, num_kills):
    with pytest.raises(SettingsError, match="too few to verify this recipe; use at least"):
        shorten_recipe(RECIPE, num_steps, num_kills)


def test_digest_depends_on_every_bit_shape_and_dtype():
    values = torch.zeros(2, 3)
    other = values.clone()
    other[1, 2] = -0.0
    digests = {digest_of(tensor) for tensor in (values, other, values.view(3, 2), values.view(torch.int32))}
    assert len(digests) == 4
    assert digest_of(values) == digest_of(torch.zeros(3, 2).t().contiguous())


def test_digest_of_a_batch_depends_on_every_field():
    batch = Batch(
        input_ids=torch.ones(1, 2).long(),
        token_type_ids=torch.zeros(1, 2).long(),
        lengths=torch.tensor([2]),
        labels={"nsp": torch.ones(1)},
    )
    changed = [
        replace(batch, input_ids=torch.zeros(1, 2).long()),
        replace(batch, lengths=torch.tensor([1])),
        replace(batch, attention="causal"),
        replace(batch, labels={"nsp": torch.zeros(1)}),
    ]
    assert len({digest_of([other]) for other in (batch, *changed)}) == 5


def test_incomplete_lines_are_skipped(tmp_path):
    line = json.dumps({"step": 1, "batch": "a", "tensors": {"w": "1"}})
    expected, actual = tmp_path / "expected", tmp_path / "actual"
    expected.write_text("\n" + line)
    actual.write_text("\n" + line[:20] + "\n" + line)
    assert verify_resume_module._first_difference(expected, actual) is None
    actual.write_text("\n" + line[:20])
    assert verify_resume_module._first_difference(expected, actual) == (1, "the step itself, which is missing")


@pytest.mark.parametrize(
    ("difference", "code", "message"),
    [
        (None, 0, "identical: 30 steps, killed and resumed 3 times"),
        ((7, "mlm_head.bias"), 1, "different from step 7 on: mlm_head.bias"),
    ],
)
def test_command_exits_with_1_if_there_is_a_difference(tmp_path, monkeypatch, difference, code, message):
    requests = []

    def verify(request, log):
        requests.append(request)
        return Verdict(30, 3, difference)

    monkeypatch.setattr(verify_resume_module, "verify_resume", verify)
    (tmp_path / "small.toml").write_text(to_toml(RECIPE), encoding="utf-8")
    result = CliRunner().invoke(app, [str(tmp_path / "small.toml"), "--data", "corpus"])
    assert result.exit_code == code
    assert message in result.stdout
    assert requests == [VerifyRequest(recipe=RECIPE, corpus=Path("corpus"), num_steps=30, num_kills=3)]
