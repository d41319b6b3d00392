"""Many processes compute what one does, resume exactly, stop together, and leave nothing behind when one fails."""

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import torch.distributed
from many_processes import started
from small_run import RECIPE, assert_close, assert_same, curve, prepare_corpus, run

import bertworks.training.checkpoint_writer
from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.commands.pretrain.request import PretrainRequest
from bertworks.commands.pretrain.run import pretrain
from bertworks.disk import explain_os_error
from bertworks.errors import BertworksError, FolderError, SettingsError
from bertworks.parallel.process_group import all_gather, all_reduce_min, broadcast, is_main_process, process_group
from bertworks.parallel.workers import num_cores
from bertworks.settings import to_toml
from bertworks.training.checkpoint import checkpoints_in, save_checkpoint
from bertworks.training.checkpoint_writer import load_latest_for_module
from bertworks.training.data_parallel import local_batch_size
from bertworks.training.loop import Step, TrainState

STILL = replace(RECIPE, model=replace(RECIPE.model, hidden_dropout_prob=0.0), batch_size=12, micro_batch_size=3)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return prepare_corpus(tmp_path_factory.mktemp("processes"))


@dataclass(frozen=True)
class Outcome:
    """What one process saw."""

    steps: list[Step]
    error: BertworksError | None
    has_group: bool
    num_threads: int


def work(request: PretrainRequest, trouble: str) -> Outcome:
    """Do what a process of torchrun does."""
    steps, error = [], None
    if trouble == "full disk" and os.environ["RANK"] == "0":
        bertworks.training.checkpoint_writer.save_checkpoint = full
    try:
        for told in pretrain(request):
            steps += [told.step] if told.step else []
            if trouble == "signal" and told.step and told.step.number == 2:
                os.kill(os.getpid(), signal.SIGTERM)
    except BertworksError as raised:
        error = raised
    return Outcome(steps, error, torch.distributed.is_initialized(), torch.get_num_threads())


def look(folders: list[Path]) -> str:
    """Look for a checkpoint, each process in a folder of its own."""
    try:
        with process_group():
            found, _ = load_latest_for_module(folders[int(os.environ["RANK"])], torch.nn.Linear(1, 1))
    except FolderError as error:
        return str(error)
    return "none" if found is None else f"step {found.train_state.step}"


def talk(texts: list[str]) -> tuple[list[str], int]:
    rank = int(os.environ["RANK"])
    with process_group():
        return all_gather(texts[rank]), broadcast(7 + rank)


def full(folder, *rest):
    raise explain_os_error(OSError(errno.ENOSPC, "full"), folder)


def together(world: int, request: PretrainRequest, trouble: str = "") -> list[Outcome]:
    outcomes = started(world, work, request, trouble)
    assert [outcome.has_group for outcome in outcomes] == [False] * world
    return outcomes


def test_two_processes_learn_what_one_does(corpus, tmp_path):
    recipe = replace(STILL, phases=(replace(STILL.phases[0], steps=14), replace(STILL.phases[1], steps=6)))
    alone = run(corpus, tmp_path / "alone", recipe)
    first, second = together(2, PretrainRequest(recipe=recipe, corpus=corpus, output=tmp_path / "both"))
    assert len(alone) == 20
    assert_close(alone, first.steps)
    assert [step.num_tokens for step in alone] == [step.num_tokens for step in first.steps]
    assert [(line["kind"], line["step"]) for line in curve(tmp_path / "alone")] == [
        (line["kind"], line["step"]) for line in curve(tmp_path / "both")
    ]
    assert second.steps == []  # only the first is told
    assert first.num_threads == second.num_threads == max(1, num_cores() // 2)


@pytest.mark.parametrize("world", [2, 3])
def test_processes_that_stop_and_continue_give_the_same_bits(corpus, tmp_path, world):
    recipe = replace(RECIPE, batch_size=12, micro_batch_size=2)
    together(world, PretrainRequest(recipe=recipe, corpus=corpus, output=tmp_path / "whole"))
    for count in (7, None):
        together(world, PretrainRequest(recipe=recipe, corpus=corpus, output=tmp_path / "parts", stop_after=count))
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_one_process_continues_what_two_began_and_says_that_bits_may_differ(corpus, tmp_path):
    alone = run(corpus, tmp_path / "alone", STILL)
    first, _ = together(2, PretrainRequest(recipe=STILL, corpus=corpus, output=tmp_path / "both", stop_after=7))
    told = list(pretrain(PretrainRequest(recipe=STILL, corpus=corpus, output=tmp_path / "both")))
    assert any("processes 2 → 1" in one.note and "not the same to the bit" in one.note for one in told)
    assert_close(alone, first.steps + [one.step for one in told if one.step])


def test_a_batch_that_cannot_be_shared_is_refused_by_all(corpus, tmp_path):
    for outcome in together(3, PretrainRequest(recipe=RECIPE, corpus=corpus, output=tmp_path / "run")):
        assert isinstance(outcome.error, SettingsError)
        assert "a batch of 8 cannot be shared equally among 3 processes; choose a multiple of 3" in str(outcome.error)
    assert not (tmp_path / "run").exists()


def test_when_the_first_process_fails_the_others_say_so_and_leave(corpus, tmp_path):
    first, second = together(2, PretrainRequest(recipe=RECIPE, corpus=corpus, output=tmp_path / "run"), "full disk")
    assert isinstance(first.error, FolderError)
    assert "the disk is full" in str(first.error)
    assert "process 1 of 2 has lost the others" in str(second.error)


def test_a_signal_to_one_process_stops_all_at_the_same_step(corpus, tmp_path):
    first, second = together(2, PretrainRequest(recipe=RECIPE, corpus=corpus, output=tmp_path / "run"), "signal")
    assert first.error is None
    assert second.error is None
    assert [step.number for step in first.steps] == [1, 2]
    assert [path.name for path in checkpoints_in(tmp_path / "run" / "checkpoints")] == ["step-00000002"]


def test_alone_there_is_no_group_and_nothing_to_agree_on(monkeypatch):
    with process_group():
        assert not torch.distributed.is_initialized()
        assert is_main_process()
        assert all_reduce_min(7) == 7
        assert local_batch_size(5) == 5
        assert all_gather("alone") == ["alone"]
    monkeypatch.setenv("RANK", "1")  # of another program: the rest of what torchrun tells is missing
    assert is_main_process()


def test_a_process_that_does_not_see_the_checkpoint_is_told_to_share_a_disk(tmp_path):
    save_checkpoint(tmp_path / "here", torch.nn.Linear(1, 1).state_dict(), {}, TrainState(step=10), "")
    (tmp_path / "there").mkdir()
    first, second = started(2, look, [tmp_path / "here", tmp_path / "there"])
    assert first == "step 10"
    assert "step-00000010, which is not there for process 1; the run folder must lie on a disk that all" in second
    assert started(2, look, [tmp_path / "there", tmp_path / "here"]) == ["none", "none"]  # the first one says


def test_processes_tell_each_other_texts_of_any_length():
    texts = ["", "北京", "a longer one"]
    assert started(3, talk, texts) == [(texts, 7)] * 3


def write_recipe(recipe: PretrainRecipe, path: Path) -> Path:
    path.write_text(to_toml(recipe), encoding="utf-8")
    return path


def test_torchrun_starts_it(corpus, tmp_path):
    recipe = write_recipe(replace(STILL, phases=STILL.phases[:1]), tmp_path / "small.toml")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "bertworks", "pretrain", str(recipe), "--data", str(corpus), "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("report: ") == 1
    assert "Warning" not in done.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["processes"] == 2
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
