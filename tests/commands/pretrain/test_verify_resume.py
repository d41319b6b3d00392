"""The proof of exact resume finds a run exact that is, and names the tensor and the step where one is not."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_run import RECIPE, prepare_corpus
from typer.testing import CliRunner

import bertworks.commands.pretrain.verify_resume as module
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
    return prepare_corpus(tmp_path_factory.mktemp("proof"))


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setattr(module, "_take_segment", run_on_one_thread)


real_run = module._run


def run_on_one_thread(request, error_file):
    torch.set_num_threads(1)  # two threads of a tiny model hinder each other where cores are shared
    real_run(request, error_file)


def run_that_forgets_a_moment(request, error_file):
    """Resume without the second moment of one tensor: the kind of slip the proof is there for."""
    restore = BertAdam.restore

    def forgetful(self, tensors, num_steps):
        lost = "square/masked.bias"
        restore(self, {**tensors, lost: torch.zeros_like(tensors[lost])}, num_steps)

    BertAdam.restore = forgetful
    run_on_one_thread(request, error_file)


def run_that_draws_anew(request, error_file):
    """Start the rows from the beginning in every process."""
    draw, first = PretrainBatches.get_batches, []

    def anew(self, phase, step):
        first.append(step)
        return draw(self, phase, max(0, step - first[0]))

    PretrainBatches.get_batches = anew
    run_on_one_thread(request, error_file)


LONG = replace(RECIPE, batch_size=16, micro_batch_size=8)
ENOUGH_STEPS = 200  # a kill comes in time before their end, also where the machine is busy


def test_a_recipe_that_resumes_exactly_is_found_identical(corpus):
    said = []
    verdict = verify_resume(VerifyRequest(LONG, corpus, num_steps=ENOUGH_STEPS, num_kills=2), said.append)
    assert verdict.first_difference is None
    assert verdict.num_kills == 2
    assert [text.rstrip("0123456789") for text in said] == [
        f"{ENOUGH_STEPS} steps undisturbed",
        "killed after step ",
        "killed after step ",
        "running to the end",
    ]


def test_a_forgotten_moment_is_found_and_named(corpus, monkeypatch):
    monkeypatch.setattr(module, "_take_segment", run_that_forgets_a_moment)
    verdict = verify_resume(VerifyRequest(LONG, corpus, num_steps=ENOUGH_STEPS, num_kills=1))
    assert verdict.num_kills == 1
    step, name = verdict.first_difference
    assert name == "masked.bias"
    assert step > 1


def test_rows_that_begin_anew_are_found_and_named(corpus, monkeypatch):
    monkeypatch.setattr(module, "_take_segment", run_that_draws_anew)
    verdict = verify_resume(VerifyRequest(LONG, corpus, num_steps=ENOUGH_STEPS, num_kills=1))
    assert verdict.num_kills == 1
    assert verdict.first_difference[1] == BATCH


def test_an_error_of_the_run_is_the_error_of_the_proof(corpus):
    with pytest.raises(BertworksError, match="has no pieces of vocabulary 0123"):
        verify_resume(VerifyRequest(RECIPE, corpus, "0123"))


def test_a_recipe_is_shortened_in_all_its_phases():
    recipe = replace(RECIPE, phases=(PhaseRecipe(16, 900_000), PhaseRecipe(32, 100_000)), warmup_steps=10_000)
    short = shorten_recipe(recipe, 30, 3)
    assert [phase.steps for phase in short.phases] == [27, 3]
    assert short.warmup_steps == 0  # a hundredth of 30 steps
    assert short.save_steps == 3


def test_a_budget_becomes_steps():
    recipe = replace(RECIPE, budget="2h", warmup_ratio=0.1)
    short = shorten_recipe(recipe, 20, 1)
    assert short.budget == ""
    assert [phase.steps for phase in short.phases] == [14, 6]  # shares of 0.7 and 0.3
    assert short.warmup_steps == 2


@pytest.mark.parametrize(("num_steps", "num_kills"), [(1, 1), (3, 3), (30, 0)])
def test_a_proof_that_would_prove_nothing_is_refused(num_steps, num_kills):
    with pytest.raises(SettingsError, match="prove nothing here; ask for at least"):
        shorten_recipe(RECIPE, num_steps, num_kills)


def test_a_digest_sees_one_bit_the_shape_and_the_type():
    values = torch.zeros(2, 3)
    other = values.clone()
    other[1, 2] = -0.0
    digests = {digest_of(one) for one in (values, other, values.view(3, 2), values.view(torch.int32))}
    assert len(digests) == 4
    assert digest_of(values) == digest_of(torch.zeros(3, 2).t().contiguous())


def test_a_digest_of_a_batch_sees_every_part():
    batch = Batch(torch.ones(1, 2).long(), torch.zeros(1, 2).long(), torch.tensor([2]), labels={"pair": torch.ones(1)})
    changed = [
        replace(batch, input_ids=torch.zeros(1, 2).long()),
        replace(batch, lengths=torch.tensor([1])),
        replace(batch, attention="left"),
        replace(batch, labels={"pair": torch.zeros(1)}),
    ]
    assert len({digest_of([one]) for one in (batch, *changed)}) == 5


def test_lines_torn_by_a_kill_are_left_out(tmp_path):
    whole = {"step": 1, "batch": "a", "tensors": {"w": "1"}}
    text = json.dumps(whole)
    (tmp_path / "whole").write_text("\n" + text)
    (tmp_path / "torn").write_text("\n" + text[:20] + "\n" + text)
    assert module._first_difference(tmp_path / "whole", tmp_path / "torn") is None
    (tmp_path / "torn").write_text("\n" + text[:20])
    assert module._first_difference(tmp_path / "whole", tmp_path / "torn") == (1, "the step itself, which was left out")


@pytest.mark.parametrize(
    ("differs", "code", "said"),
    [
        (None, 0, "identical: 30 steps, killed and resumed 3 times"),
        ((7, "masked.bias"), 1, "different from step 7 on: masked.bias"),
    ],
)
def test_the_verb_prints_the_verdict_and_exits_with_1_if_there_is_a_difference(
    tmp_path, monkeypatch, differs, code, said
):
    asked = []

    def proof(request, watch):
        asked.append(request)
        return Verdict(30, 3, differs)

    monkeypatch.setattr("bertworks.cli.verify_resume.verify_resume", proof)
    (tmp_path / "small.toml").write_text(to_toml(RECIPE), encoding="utf-8")
    done = CliRunner().invoke(app, [str(tmp_path / "small.toml"), "--data", "corpus"])
    assert done.exit_code == code
    assert said in done.stdout
    assert asked == [VerifyRequest(RECIPE, Path("corpus"), None, 30, 3)]
