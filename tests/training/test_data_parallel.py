"""Several processes train like one, resume exactly, stop pretrain_together, and exit when one of them fails."""

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
from many_processes import run_processes
from small_run import RECIPE, assert_close, assert_same, curve, prepare_corpus, run, state

import bertworks.training.checkpoint_writer
from bertworks.commands.pretrain.recipe import PhaseRecipe, PretrainRecipe
from bertworks.commands.pretrain.request import PretrainRequest
from bertworks.commands.pretrain.run import run_pretrain
from bertworks.disk import explain_os_error
from bertworks.errors import BertworksError, FolderError, SettingsError
from bertworks.folder_lock import lock_folder
from bertworks.parallel.process_group import process_group
from bertworks.parallel.workers import num_cores
from bertworks.settings import to_toml
from bertworks.training.checkpoint import checkpoints_in, save_checkpoint
from bertworks.training.checkpoint_writer import load_latest_for_module
from bertworks.training.loop import Step, TrainState

NO_DROPOUT_RECIPE = replace(
    RECIPE, model=replace(RECIPE.model, hidden_dropout_prob=0.0), batch_size=12, micro_batch_size=3
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return prepare_corpus(tmp_path_factory.mktemp("processes"))


@dataclass(frozen=True)
class Outcome:
    """The result of one process."""

    steps: list[Step]
    error: BertworksError | None
    has_group: bool
    num_threads: int


def pretrain_one(request: PretrainRequest, fault: str) -> Outcome:
    """Pretrain in one process of torchrun, with an injected fault."""
    steps, error = [], None
    if fault == "full disk" and os.environ["RANK"] == "0":
        bertworks.training.checkpoint_writer.save_checkpoint = fail_with_full_disk
    try:
        for event in run_pretrain(request):
            steps += [event.step] if event.step else []
            if fault == "signal" and event.step and event.step.number == 2:
                os.kill(os.getpid(), signal.SIGTERM)
    except BertworksError as raised:
        error = raised
    return Outcome(steps, error, torch.distributed.is_initialized(), torch.get_num_threads())


def find_checkpoint(folders: list[Path]) -> str:
    """Look for the latest checkpoint, each process in a folder of its own."""
    try:
        with process_group():
            latest, _ = load_latest_for_module(folders[int(os.environ["RANK"])], torch.nn.Linear(1, 1))
    except FolderError as error:
        return str(error)
    return "none" if latest is None else f"step {latest.train_state.step}"


def fail_with_full_disk(folder, *_):
    raise explain_os_error(OSError(errno.ENOSPC, "full"), folder)


def pretrain_together(world_size: int, request: PretrainRequest, fault: str = "") -> list[Outcome]:
    outcomes = run_processes(world_size, pretrain_one, request, fault)
    assert [outcome.has_group for outcome in outcomes] == [False] * world_size
    return outcomes


def test_two_processes_have_the_losses_of_one(corpus, tmp_path):
    short, long = NO_DROPOUT_RECIPE.phases
    recipe = replace(NO_DROPOUT_RECIPE, phases=(replace(short, steps=14), replace(long, steps=6)))
    single = run(corpus, tmp_path / "single", recipe)
    first, second = pretrain_together(2, PretrainRequest(recipe=recipe, corpus=corpus, output=tmp_path / "both"))
    assert len(single) == 20
    assert_close(single, first.steps)
    assert [step.num_tokens for step in single] == [step.num_tokens for step in first.steps]
    assert [(line["kind"], line["step"]) for line in curve(tmp_path / "single")] == [
        (line["kind"], line["step"]) for line in curve(tmp_path / "both")
    ]
    assert second.steps == []  # only the main process yields events
    assert first.num_threads == second.num_threads == max(1, num_cores() // 2)


@pytest.mark.parametrize(("world_size", "precision"), [(2, "fp32"), (3, "fp32"), (2, "bf16")])
def test_an_interrupted_run_resumes_bit_identically(corpus, tmp_path, world_size, precision):
    recipe = replace(RECIPE, batch_size=12, micro_batch_size=2, precision=precision)
    pretrain_together(world_size, PretrainRequest(recipe=recipe, corpus=corpus, output=tmp_path / "uninterrupted"))
    for count in (7, None):
        pretrain_together(
            world_size, PretrainRequest(recipe=recipe, corpus=corpus, output=tmp_path / "resumed", stop_after=count)
        )
    assert_same(tmp_path / "uninterrupted", tmp_path / "resumed")


def test_averaged_weights_of_two_processes_resume_bit_identically(corpus, tmp_path):
    recipe = replace(NO_DROPOUT_RECIPE, ema_decay=0.9)
    for name, counts in (("uninterrupted", (None,)), ("resumed", (7, None))):
        for count in counts:
            pretrain_together(
                2, PretrainRequest(recipe=recipe, corpus=corpus, output=tmp_path / name, stop_after=count)
            )
    assert_same(tmp_path / "uninterrupted", tmp_path / "resumed")
    run(corpus, tmp_path / "single", recipe)
    averages = [
        {key: value for key, value in state(tmp_path / name).items() if "/ema/" in key}
        for name in ("uninterrupted", "single")
    ]
    assert averages[0].keys() == averages[1].keys()
    assert all(torch.allclose(averages[0][name], averages[1][name], atol=1e-5) for name in averages[1])


def test_one_process_resumes_a_run_of_two_and_warns_that_bits_may_differ(corpus, tmp_path):
    single = run(corpus, tmp_path / "single", NO_DROPOUT_RECIPE)
    first, _ = pretrain_together(
        2, PretrainRequest(recipe=NO_DROPOUT_RECIPE, corpus=corpus, output=tmp_path / "both", stop_after=7)
    )
    events = list(run_pretrain(PretrainRequest(recipe=NO_DROPOUT_RECIPE, corpus=corpus, output=tmp_path / "both")))
    assert any("world_size 2 → 1" in event.note and "not bit-identical" in event.note for event in events)
    assert_close(single, first.steps + [event.step for event in events if event.step])


def test_a_batch_size_that_is_not_divisible_is_refused_by_all_processes(corpus, tmp_path):
    for outcome in pretrain_together(3, PretrainRequest(recipe=RECIPE, corpus=corpus, output=tmp_path / "run")):
        assert isinstance(outcome.error, SettingsError)
        assert "a batch size of 8 is not divisible by 3 processes; choose a multiple of 3" in str(outcome.error)
    assert not (tmp_path / "run").exists()


def test_a_batch_size_of_a_phase_that_is_not_divisible_is_refused(corpus, tmp_path):
    phases = (PhaseRecipe(16, steps=4), PhaseRecipe(32, steps=4, batch_size=7))
    recipe = replace(RECIPE, phases=phases)
    for outcome in pretrain_together(2, PretrainRequest(recipe=recipe, corpus=corpus, output=tmp_path / "run")):
        assert "a batch size of 7 is not divisible by 2 processes" in str(outcome.error)


def test_a_folder_that_another_run_writes_to_is_refused_by_all_processes(corpus, tmp_path):
    folder = tmp_path / "run"
    with lock_folder(folder):
        for outcome in pretrain_together(2, PretrainRequest(recipe=RECIPE, corpus=corpus, output=folder)):
            assert f"another run is writing to {folder} " in str(outcome.error)


def test_when_the_main_process_fails_the_others_exit(corpus, tmp_path):
    first, second = pretrain_together(
        2, PretrainRequest(recipe=RECIPE, corpus=corpus, output=tmp_path / "run"), "full disk"
    )
    assert isinstance(first.error, FolderError)
    assert "no space left on the disk of" in str(first.error)
    assert "process 1 of 2 lost the connection to the others" in str(second.error)


def test_a_signal_to_one_process_stops_all_at_the_same_step(corpus, tmp_path):
    first, second = pretrain_together(
        2, PretrainRequest(recipe=RECIPE, corpus=corpus, output=tmp_path / "run"), "signal"
    )
    assert first.error is None
    assert second.error is None
    assert [step.number for step in first.steps] == [1, 2]
    assert [path.name for path in checkpoints_in(tmp_path / "run" / "checkpoints")] == ["step-00000002"]


def test_a_process_that_does_not_see_the_checkpoint_is_refused(tmp_path):
    save_checkpoint(tmp_path / "first", torch.nn.Linear(1, 1).state_dict(), {}, TrainState(step=10), "")
    (tmp_path / "second").mkdir()
    first, second = run_processes(2, find_checkpoint, [tmp_path / "first", tmp_path / "second"])
    assert first == "step 10"
    assert (
        "step-00000010, which does not exist for process 1; the run folder must be on a disk that all nodes share"
        in second
    )
    assert run_processes(2, find_checkpoint, [tmp_path / "second", tmp_path / "first"]) == [
        "none",
        "none",
    ]  # the main process decides


def test_if_every_checkpoint_is_damaged_all_processes_say_so(tmp_path):
    save_checkpoint(tmp_path, {}, {}, TrainState(step=10), "")
    (tmp_path / "step-00000010" / "manifest.json").write_text("{}")
    for message in run_processes(2, find_checkpoint, [tmp_path, tmp_path]):
        assert f"every checkpoint in {tmp_path} is damaged" in message


def write_recipe(recipe: PretrainRecipe, path: Path) -> Path:
    path.write_text(to_toml(recipe), encoding="utf-8")
    return path


def test_pretraining_with_torchrun(corpus, tmp_path):
    recipe = write_recipe(replace(NO_DROPOUT_RECIPE, phases=NO_DROPOUT_RECIPE.phases[:1]), tmp_path / "small.toml")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "bertworks", "pretrain", str(recipe), "--data", str(corpus), "--output", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("report: ") == 1
    assert "Warning" not in done.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["world_size"] == 2
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
