"""A pretraining run: from recipe to model folder; interrupted anywhere, it ends with the same bits."""

import contextlib
import errno
import json
import multiprocessing
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small_run import RECIPE, assert_close, assert_same, curve, prepare_corpus, run, state

import bertworks.training.checkpoint
from bertworks.commands.pretrain.recipe import PhaseRecipe, PretrainRecipe
from bertworks.commands.pretrain.run import PretrainRequest, pretrain
from bertworks.errors import BertworksError, FolderError, SettingsError
from bertworks.inference.model import load
from bertworks.settings import read_recipe
from bertworks.training.checkpoint import checkpoints_in

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return prepare_corpus(tmp_path_factory.mktemp("pretraining"))


def test_a_run_ends_with_a_model_that_others_can_load(corpus, tmp_path):
    from transformers import AutoTokenizer, BertForPreTraining

    steps = run(corpus, tmp_path / "run")
    assert [step.number for step in steps] == list(range(1, 13))
    assert [step.phase for step in steps] == [0] * 8 + [1] * 4
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {
        "recipe.toml",
        "metrics.jsonl",
        "report.html",
        "model",
    }
    theirs = BertForPreTraining.from_pretrained(tmp_path / "run" / "model").eval()
    ours = load(tmp_path / "run" / "model")
    encoded = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")("The river [MASK].", return_tensors="pt")
    assert encoded["input_ids"][0].tolist() == list(
        ours.tokenizer.encode("The river [MASK].", parse_masks=True).input_ids
    )
    scores = theirs(**encoded).prediction_logits[0, 3].detach()
    scores[list(ours.tokenizer.specials.ids)] = float("-inf")
    best = scores.softmax(-1).max()
    assert ours.fill_mask("The river [MASK].", 1).mask_candidates[0][0].probability == pytest.approx(
        float(best), abs=1e-5
    )


def test_stopped_and_continued_it_is_the_same_to_the_bit(corpus, tmp_path):
    run(corpus, tmp_path / "whole")
    for count in (2, 5, 3):
        run(corpus, tmp_path / "parts", stop_after=count)
    run(corpus, tmp_path / "parts")
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_the_same_recipe_gives_the_same_bits_and_another_seed_others(corpus, tmp_path):
    run(corpus, tmp_path / "one")
    run(corpus, tmp_path / "two")
    assert_same(tmp_path / "one", tmp_path / "two")
    run(corpus, tmp_path / "three", replace(RECIPE, seed=1))
    assert curve(tmp_path / "three") != curve(tmp_path / "one")


def test_micro_batches_change_nothing_but_rounding(corpus, tmp_path):
    still = replace(RECIPE, model=replace(RECIPE.model, hidden_dropout_prob=0.0))
    whole = run(corpus, tmp_path / "whole", replace(still, micro_batch_size=8))
    parts = run(corpus, tmp_path / "parts", replace(still, micro_batch_size=2))
    assert_close(whole, parts)


def test_a_run_without_pairs_continues_too(corpus, tmp_path):
    recipe = replace(RECIPE, objective="masked")
    run(corpus, tmp_path / "whole", recipe)
    run(corpus, tmp_path / "parts", recipe, stop_after=4)
    run(corpus, tmp_path / "parts", recipe)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_a_finished_run_that_is_started_again_stays_as_it_is(corpus, tmp_path):
    run(corpus, tmp_path / "run")
    before = curve(tmp_path / "run"), state(tmp_path / "run")
    assert run(corpus, tmp_path / "run") == []
    assert curve(tmp_path / "run") == before[0]
    assert all(torch.equal(value, state(tmp_path / "run")[name]) for name, value in before[1].items())


def test_the_micro_batch_that_memory_allowed_at_first_is_kept(corpus, tmp_path, monkeypatch):
    recipe = replace(RECIPE, micro_batch_size=0)
    whole = replace(RECIPE, micro_batch_size=2)
    monkeypatch.setattr(
        "bertworks.commands.pretrain.micro_batch.fitting_micro_batch", lambda sizes, wanted, *rest: min(wanted, 2)
    )
    run(corpus, tmp_path / "parts", recipe, stop_after=4)
    monkeypatch.undo()
    run(corpus, tmp_path / "parts", recipe)
    run(corpus, tmp_path / "whole", whole)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_the_model_is_that_of_the_best_held_out_loss(corpus, tmp_path, monkeypatch):
    losses = {0: 0.5, 2: 3.0, 4: 2.0, 6: 2.5, 8: 2.6}
    evaluate, seen = bertworks.commands.pretrain.run.evaluate, iter(losses.values())

    def measured(*given):
        scores = evaluate(*given)
        return replace(scores, losses={**scores.losses, "masked": next(seen)})

    monkeypatch.setattr("bertworks.commands.pretrain.run.evaluate", measured)
    recipe = replace(RECIPE, phases=RECIPE.phases[:1], eval_steps=2, save_steps=1)
    notes = [told.note for told in pretrain(PretrainRequest(recipe, corpus, tmp_path / "run"))]
    assert "the model is that of step-00000004, which had the best held-out loss" in notes
    names = [path.name for path in checkpoints_in(tmp_path / "run" / "checkpoints")]
    assert names == ["step-00000004", "step-00000007", "step-00000008"]  # the best one and the last two
    best = load_file(tmp_path / "run" / "checkpoints" / "step-00000004" / "model.safetensors")
    model = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert torch.equal(model["bert.pooler.dense.weight"], best["encoder.pooler.weight"])
    told = json.loads((tmp_path / "run" / "model" / "bertworks.json").read_text())
    assert told["scores"] == {"held_out_loss": 2.0}


def test_losses_of_an_earlier_phase_are_no_measure_for_the_last(corpus, tmp_path, monkeypatch):
    evaluate, seen = bertworks.commands.pretrain.run.evaluate, iter([3.0, 1.0, 2.5, 2.4])

    def measured(*given):
        scores = evaluate(*given)
        return replace(scores, losses={**scores.losses, "masked": next(seen)})

    monkeypatch.setattr("bertworks.commands.pretrain.run.evaluate", measured)
    run(corpus, tmp_path / "run")  # measured at steps 0 and 5, then at 10 and 12 with the longer rows
    told = json.loads((tmp_path / "run" / "model" / "bertworks.json").read_text())
    assert told["scores"] == {"held_out_loss": 2.4}


def test_a_full_disk_while_saving_is_one_sentence_and_the_same_command_continues(corpus, tmp_path, monkeypatch):
    run(corpus, tmp_path / "whole")
    save_file, left = bertworks.training.checkpoint.save_file, iter(range(5))

    def full(tensors, path):
        if next(left, None) is None:
            Path(path).write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save_file(tensors, path)

    monkeypatch.setattr("bertworks.training.checkpoint.save_file", full)
    with pytest.raises(FolderError, match=r"cannot write .*: the disk is full; free some space and run the same"):
        run(corpus, tmp_path / "parts")
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "parts" / "checkpoints").iterdir()] != []
    run(corpus, tmp_path / "parts")
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(corpus, tmp_path):
    run(corpus, tmp_path / "whole")
    run(corpus, tmp_path / "parts", stop_after=6)
    last = checkpoints_in(tmp_path / "parts" / "checkpoints")[-1]
    damaged = last / "optimizer.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    request = PretrainRequest(RECIPE, corpus, tmp_path / "parts")
    told = list(pretrain(request))
    assert any("step-00000006: optimizer.safetensors is not what was written" in one.warning for one in told)
    assert any("continuing after step 5" in one.note for one in told)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_a_folder_of_another_recipe_is_refused(corpus, tmp_path):
    run(corpus, tmp_path / "run", stop_after=2)
    with pytest.raises(FolderError, match="holds a run of another recipe"):
        run(corpus, tmp_path / "run", replace(RECIPE, learning_rate=1e-4))


def test_a_folder_with_something_else_is_refused(corpus, tmp_path):
    (tmp_path / "thesis.doc").write_text("ten years of work")
    with pytest.raises(FolderError, match="already holds something else"):
        run(corpus, tmp_path)


def test_a_checkpoint_of_another_corpus_is_refused(corpus, tmp_path):
    run(corpus, tmp_path / "run", stop_after=2)
    (tmp_path / "other").mkdir()
    other = prepare_corpus(tmp_path / "other", num_documents=30)
    with pytest.raises(
        FolderError, match="step-00000002 was made with another recipe or corpus; choose another folder"
    ):
        run(other, tmp_path / "run")


def test_a_misspelt_key_of_a_recipe_is_named_with_the_right_one(tmp_path):
    (tmp_path / "small.toml").write_text("batsch = 8\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"small.toml: there is no key 'batsch'; did you mean 'batch'\?"):
        read_recipe(tmp_path / "small.toml", PretrainRecipe)


def test_a_model_that_does_not_fit_leaves_no_folder_behind(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("bertworks.commands.pretrain.micro_batch.available_bytes", lambda device: 1000)
    with pytest.raises(
        SettingsError, match=r"one example of length 32 needs about .* choose recompute = true, a smaller"
    ):
        run(corpus, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_corpus_without_the_vocabulary_that_was_asked_for_is_refused(corpus, tmp_path):
    with pytest.raises(FolderError, match="has no pieces of vocabulary 0123"):
        list(pretrain(PretrainRequest(RECIPE, corpus, tmp_path / "run", vocabulary="0123")))


def test_a_length_over_the_positions_is_refused_when_the_recipe_is_read():
    with pytest.raises(SettingsError, match="phase 1 has length 64, but the model has 32 positions"):
        replace(RECIPE, phases=(PhaseRecipe(64, 1),))


def test_a_loss_that_is_no_number_stops_with_the_reason(corpus, tmp_path):
    with pytest.raises(BertworksError, match="learning rate is too high"):
        run(corpus, tmp_path / "run", replace(RECIPE, learning_rate=1e30, warmup_steps=0))


def test_a_budget_ends_on_time_at_rate_zero_and_what_was_done_is_followed_again(corpus, tmp_path, monkeypatch):
    recipe = replace(RECIPE, budget="2s", save_steps=4)
    steps = run(corpus, tmp_path / "run", recipe)
    assert steps[-2].seconds < 2.0 <= steps[-1].seconds  # the step in which the budget is spent is the last
    assert steps[-1].learning_rate == pytest.approx(RECIPE.learning_rate * (2.0 - steps[-2].seconds) / (0.95 * 2.0))
    assert [step.phase for step in steps] == sorted(step.phase for step in steps)
    before, tensors = curve(tmp_path / "run"), state(tmp_path / "run")
    assert [(line["phase"], line["rate"]) for line in before if line["kind"] == "step"] == [
        (("16", "32")[step.phase], step.learning_rate) for step in steps
    ]
    last = checkpoints_in(tmp_path / "run" / "checkpoints")[-1]
    (last / "manifest.json").unlink()
    # Continued from an earlier checkpoint, on a clock that stands still: only the record can tell when to end.
    monkeypatch.setattr("bertworks.training.loop.time.perf_counter", lambda: 0.0)
    again = run(corpus, tmp_path / "run", recipe, stop_after=len(steps) - checkpoints_before(last))
    assert [(step.phase, step.learning_rate) for step in again] == [
        (step.phase, step.learning_rate) for step in steps[-len(again) :]
    ]
    assert all(torch.equal(value, state(tmp_path / "run")[name]) for name, value in tensors.items())


def checkpoints_before(last: Path) -> int:
    """Return the step of the checkpoint before `last`."""
    return int(checkpoints_in(last.parent)[-2].name.removeprefix("step-"))


def under_fire(num_kills: int) -> PretrainRecipe:
    """Return a recipe that saves every step and is long enough not to end before the last kill."""
    phases = (PhaseRecipe(16, 10 * num_kills + 10), PhaseRecipe(32, 2 * num_kills + 2))
    return replace(RECIPE, save_steps=1, eval_steps=20, phases=phases)


def run_slowly(recipe: PretrainRecipe, corpus: Path, out: Path, said) -> None:
    """Run with every step saved, and so slowly that most of the time goes into writing checkpoints."""
    torch.set_num_threads(1)
    # The server that starts this process may itself have been started while Ctrl-C was held back.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    save_file = bertworks.training.checkpoint.save_file

    def slow(tensors, path):
        save_file(tensors, path)
        time.sleep(0.01)

    bertworks.training.checkpoint.save_file = slow
    for told in pretrain(PretrainRequest(recipe, corpus, out)):
        if told.step is not None:
            said.send(told.step.number)


@contextlib.contextmanager
def process(recipe: PretrainRecipe, corpus: Path, out: Path):
    """Start a run in a process of its own; yield it and the end of a pipe that tells of every step."""
    context = multiprocessing.get_context("forkserver")  # with torch loaded, so that it starts at once
    context.set_forkserver_preload(["bertworks.commands.pretrain.verify_resume", "torch._dynamo"])
    heard, said = context.Pipe(duplex=False)
    process = context.Process(target=run_slowly, args=(recipe, corpus, out, said))
    process.start()
    said.close()
    try:
        yield process, heard
    finally:
        process.kill()
        process.join()
        heard.close()


@pytest.mark.parametrize(("num_kills", "seed"), [(3, 0), pytest.param(20, 1, marks=pytest.mark.soak)])
def test_killed_at_any_moment_it_ends_with_the_same_bits(corpus, tmp_path, num_kills, seed):
    """Every step is saved, slowly, so that most of the kills come while a checkpoint is being written."""
    recipe = under_fire(num_kills)
    run(corpus, tmp_path / "whole", replace(recipe, save_steps=1000))
    draw = random.Random(seed)
    for _ in range(num_kills):
        with process(recipe, corpus, tmp_path / "parts") as (killed, heard):
            heard.recv()
            time.sleep(draw.uniform(0, 0.3))
            killed.kill()
            killed.combine()
            assert killed.exitcode == -signal.SIGKILL
    assert not (tmp_path / "parts" / "model").exists()
    run(corpus, tmp_path / "parts", recipe)
    assert_same(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_saves_and_leaves(corpus, tmp_path, number):
    recipe = under_fire(20)  # ten seconds of work, so that the wish comes in time on a busy machine
    with process(recipe, corpus, tmp_path / "run") as (asked, heard):
        last = heard.recv()
        os.kill(asked.pid, number)
        with contextlib.suppress(EOFError):
            while True:
                last = heard.recv()
        asked.combine()
    assert asked.exitcode == 0
    assert last < sum(phase.steps for phase in recipe.phases)
    assert checkpoints_in(tmp_path / "run" / "checkpoints")[-1].name == f"step-{last:08d}"
