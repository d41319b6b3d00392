"""Checkpoints: bit-exact, complete or absent after a crash; damaged ones are reported and skipped."""

import errno
import json
import os
import pickletools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from killed_child import run_killed
from safetensors import SafetensorError

from bertworks.errors import FolderError
from bertworks.training import checkpoint
from bertworks.training.checkpoint import (
    CheckpointProcessGroup,
    checkpoints_in,
    keep_last,
    load_checkpoint,
    load_latest_checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from bertworks.training.loop import TrainState

FILES = {"model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"}
MODEL = {
    "encoder.weight": torch.randn(5, 3, generator=torch.Generator().manual_seed(0)),
    "odd": torch.tensor([0.0, -0.0, float("inf"), float("nan"), 1e-45]),  # a denormal and other special values
    "transposed": torch.arange(6.0).view(2, 3).t(),
}
OPTIMIZER = {
    "exp_avg/encoder.weight": torch.full((5, 3), 1 / 3),
    "exp_avg_sq/encoder.weight": torch.full((5, 3), 1e-30),
}


def save(folder: Path, step: int) -> Path:
    return save_checkpoint(
        folder,
        MODEL,
        OPTIMIZER,
        TrainState(step=step, seconds=0.1 * step, num_tokens=7 * step, phase_steps={0: step}),
        "r" * 16,
    )


def bits(tensors: dict[str, torch.Tensor]) -> dict[str, list[int]]:
    return {name: values.contiguous().view(torch.int32).flatten().tolist() for name, values in tensors.items()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_reads_back_bit_identically(tmp_path: Path):
    train_state = TrainState(step=1_200, seconds=0.1 + 0.2, num_tokens=10**12, phase_steps={0: 1_000, 1: 200})
    path = save_checkpoint(tmp_path / "checkpoints", MODEL, OPTIMIZER, train_state, "0123456789abcdef")
    assert path == tmp_path / "checkpoints" / "step-00001200"
    loaded = load_checkpoint(path)
    assert loaded.folder == path
    assert bits(dict(loaded.model)) == bits(MODEL)
    assert bits(dict(loaded.optimizer)) == bits(OPTIMIZER)
    assert {name: values.shape for name, values in loaded.model.items()} == {k: v.shape for k, v in MODEL.items()}
    assert loaded.train_state == train_state
    assert loaded.recipe == "0123456789abcdef"


def test_a_checkpoint_before_the_first_step_has_no_optimizer_state(tmp_path: Path):
    loaded = load_checkpoint(save_checkpoint(tmp_path, MODEL, {}, TrainState(), ""))
    assert dict(loaded.optimizer) == {}
    assert loaded.train_state == TrainState()


def test_later_changes_of_a_parameter_do_not_change_the_checkpoint(tmp_path: Path):
    parameter = torch.nn.Parameter(torch.ones(2))
    path = save_checkpoint(tmp_path, {"one": parameter}, {}, TrainState(step=1), "")
    with torch.no_grad():
        parameter.zero_()
    assert load_checkpoint(path).model["one"].tolist() == [1.0, 1.0]


def test_a_checkpoint_has_no_pickle_and_no_other_files(tmp_path: Path):
    path = save(tmp_path, 3)
    assert set(names(path)) == FILES
    assert names(tmp_path) == ["step-00000003"]
    for file in path.iterdir():
        data = file.read_bytes()
        assert not data.startswith((b"\x80", b"PK"))  # a pickle, or a zip with one in it
        with pytest.raises(ValueError):
            list(pickletools.genops(data))


def test_the_manifest_has_the_hash_of_every_other_file(tmp_path: Path):
    manifest = json.loads((save(tmp_path, 3) / "manifest.json").read_text())
    assert set(manifest) == FILES - {"manifest.json"}
    assert all(len(digest) == 64 for digest in manifest.values())


class Crash(BaseException):
    """An exception that nothing catches, as Ctrl-C."""


CRASHING_FUNCTIONS = ["save_file", "write_json", "sha256"]


def inject_failure(monkeypatch: pytest.MonkeyPatch, function: str, error: BaseException, after: int = 0) -> None:
    """Let a function of the module fail after `after` successful calls."""
    original: Callable[..., object] = getattr(checkpoint, function)
    calls = iter(range(100))

    def fail(*arguments: object) -> object:
        if next(calls) >= after:
            raise error
        return original(*arguments)

    monkeypatch.setattr(checkpoint, function, fail)


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("function", CRASHING_FUNCTIONS)
def test_a_crash_while_writing_leaves_older_checkpoints_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, after: int
):
    save(tmp_path, 10)
    save(tmp_path, 20)
    with monkeypatch.context() as patched:
        inject_failure(patched, function, Crash(), after)
        with pytest.raises(Crash):
            save(tmp_path, 30)
    assert names(tmp_path) == ["step-00000010", "step-00000020"]
    latest, damaged = load_latest_checkpoint(tmp_path)
    assert latest is not None
    assert (latest.train_state.step, damaged) == (20, [])
    assert load_checkpoint(save(tmp_path, 30)).train_state.step == 30


@pytest.mark.parametrize("function", CRASHING_FUNCTIONS)
def test_a_crash_while_rewriting_a_step_leaves_its_checkpoint_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
):
    save(tmp_path, 10)
    with monkeypatch.context() as patched:
        inject_failure(patched, function, Crash(), 1)
        with pytest.raises(Crash):
            save(tmp_path, 10)
    assert load_checkpoint(tmp_path / "step-00000010").train_state.step == 10


def test_a_step_can_be_saved_again(tmp_path: Path):
    save(tmp_path, 10)
    save_checkpoint(tmp_path, {"other": torch.ones(1)}, {}, TrainState(step=10), "")
    assert names(tmp_path) == ["step-00000010"]
    assert set(load_checkpoint(tmp_path / "step-00000010").model) == {"other"}


def test_incomplete_folders_of_a_killed_process_are_ignored_and_removed_by_the_next_save(tmp_path: Path):
    save(tmp_path, 10)
    for name in (".step-00000020.part", ".step-00000005.4711.part", ".step-00000010.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"half")
    latest, damaged = load_latest_checkpoint(tmp_path)
    assert latest is not None
    assert (latest.train_state.step, damaged) == (10, [])
    save(tmp_path, 20)
    assert names(tmp_path) == ["step-00000010", "step-00000020"]


def truncate(path: Path) -> None:
    file = path / "model.safetensors"
    os.truncate(file, file.stat().st_size - 1)


def flip(name: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray((path / name).read_bytes())
        data[-5] ^= 1
        (path / name).write_bytes(data)

    return damage


def empty_manifest(path: Path) -> None:
    (path / "manifest.json").write_text("{}")


def foreign_manifest(path: Path) -> None:
    (path / "manifest.json").write_text("[1, 2]")


DAMAGES = {
    "truncated": (truncate, "the hash of model.safetensors differs"),
    "a bit flipped in the weights": (flip("model.safetensors"), "the hash of model.safetensors differs"),
    "a bit flipped in the optimizer": (flip("optimizer.safetensors"), "the hash of optimizer.safetensors differs"),
    "a bit flipped in the train state": (flip("state.json"), "the hash of state.json differs"),
    "a file deleted": (lambda path: (path / "optimizer.safetensors").unlink(), "optimizer.safetensors"),
    "no manifest": (lambda path: (path / "manifest.json").unlink(), "manifest.json"),
    "a truncated manifest": (lambda path: os.truncate(path / "manifest.json", 40), "damaged"),
    "a manifest without names": (empty_manifest, "damaged: 'model.safetensors'"),
    "a foreign manifest": (foreign_manifest, "damaged"),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_reported_and_the_last_undamaged_one_used(
    tmp_path: Path, damage: Callable[[Path], None], reason: str
):
    for step in (10, 20, 30):
        save(tmp_path, step)
    damage(tmp_path / "step-00000030")
    with pytest.raises(FolderError, match=reason):
        load_checkpoint(tmp_path / "step-00000030")
    latest, damaged = load_latest_checkpoint(tmp_path)
    assert latest is not None
    assert latest.train_state.step == 20
    assert len(damaged) == 1
    assert damaged[0].startswith(f"checkpoint {tmp_path / 'step-00000030'}")
    assert reason in damaged[0]


def test_without_checkpoints_nothing_is_returned(tmp_path: Path):
    assert load_latest_checkpoint(tmp_path / "nowhere") == (None, [])


def test_if_every_checkpoint_is_damaged_the_error_says_what_to_do(tmp_path: Path):
    for step in (10, 20):
        truncate(save(tmp_path, step))
    message = (
        rf"every checkpoint in {tmp_path} is damaged \(checkpoint {tmp_path}/step-00000020.*\); restore one of them "
        rf"from a copy, or delete {tmp_path} to train again from the first step"
    )
    with pytest.raises(FolderError, match=f"^{message}$"):
        load_latest_checkpoint(tmp_path)


DISK_FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("save_file", SafetensorError("I/O error: No space left on device (os error 28)")),
        ("save_file", DISK_FULL),
        ("sha256", DISK_FULL),
    ],
)
def test_a_full_disk_is_reported_with_the_remedy_and_older_checkpoints_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, error: Exception
):
    save(tmp_path, 10)
    with monkeypatch.context() as patched:
        inject_failure(patched, function, error)
        with pytest.raises(FolderError) as caught:
            save(tmp_path, 20)
    message = str(caught.value)
    assert message.startswith(f"cannot write {tmp_path}")
    assert "step-00000020" in message
    assert "free some space" in message
    assert "\n" not in message
    assert names(tmp_path) == ["step-00000010"]
    assert load_checkpoint(tmp_path / "step-00000010").train_state.step == 10


def test_the_newest_checkpoints_and_the_best_one_are_kept(tmp_path: Path):
    for step in (10, 20, 30, 40, 50):
        save(tmp_path, step)
    keep_last(tmp_path, 2, {"step-00000020", "step-99999999"})
    assert [path.name for path in checkpoints_in(tmp_path)] == ["step-00000020", "step-00000040", "step-00000050"]
    keep_last(tmp_path, 2, {"step-00000050"})
    assert [path.name for path in checkpoints_in(tmp_path)] == ["step-00000040", "step-00000050"]
    keep_last(tmp_path, 5, set())
    assert len(checkpoints_in(tmp_path)) == 2
    keep_last(tmp_path, 0, set())
    assert checkpoints_in(tmp_path) == []


def test_killed_while_it_removes_a_checkpoint_none_is_left_in_part(tmp_path: Path):
    for step in (10, 20):
        save(tmp_path, step)
    number = 1
    while run_killed(lambda: keep_last(tmp_path, 1, set()), tmp_path, number):
        for path in checkpoints_in(tmp_path):
            load_checkpoint(path)  # complete
        keep_last(tmp_path, 1, set())
        assert names(tmp_path) == ["step-00000020"]
        save(tmp_path, 10)
        save(tmp_path, 20)
        number += 1
    assert number > 4  # killed before it renames the folder, and before it removes each of its files


def test_damaged_checkpoints_are_removed_when_the_run_resumes_before_them(tmp_path: Path):
    for step in (10, 20, 30):
        save(tmp_path, step)
    for step in (20, 30):
        truncate(tmp_path / f"step-000000{step}")
    latest, _ = load_latest_checkpoint(tmp_path)
    assert latest is not None
    save(tmp_path, latest.train_state.step + 5)
    keep_last(tmp_path, 2, set())
    latest, damaged = load_latest_checkpoint(tmp_path)
    assert latest is not None
    assert (latest.train_state.step, damaged) == (15, [])
    assert names(tmp_path) == ["step-00000010", "step-00000015"]


def test_checkpoints_are_listed_oldest_first_without_other_files(tmp_path: Path):
    for step in (100, 9, 20):
        save(tmp_path, step) if step == 100 else (tmp_path / f"step-{step:08d}").mkdir()
    (tmp_path / "step-notes.txt").write_text("mine")
    assert [path.name for path in checkpoints_in(tmp_path)] == ["step-00000009", "step-00000020", "step-00000100"]


def save_sharded(folder: Path, rows: list[int]) -> Path:
    """Save a sharded checkpoint with one thread per process, each with some rows of a tensor and of its moment."""
    barrier, texts = threading.Barrier(len(rows)), [""] * len(rows)
    ends = torch.tensor(rows).cumsum(0).tolist()

    def all_gather(rank: int, text: str) -> list[str]:
        texts[rank] = text
        barrier.wait(10)
        gathered = list(texts)
        barrier.wait(10)
        return gathered

    def write(rank: int) -> Path:
        local = MODEL["encoder.weight"][ends[rank] - rows[rank] : ends[rank]]
        model = {"encoder.weight": local}
        if rank == 0:
            model["odd"] = MODEL["odd"]  # tensors that are not sharded belong to rank 0
        moments = {"exp_avg/encoder.weight": local} if rows[rank] else {}
        process_group = CheckpointProcessGroup(rank, len(rows), lambda text: all_gather(rank, text))
        return save_checkpoint(folder, model, moments, TrainState(step=7), "", process_group)

    with ThreadPoolExecutor(len(rows)) as threads:
        return set(threads.map(write, range(len(rows)))).pop()


def test_shards_are_concatenated_or_read_by_rows(tmp_path: Path):
    path = save_sharded(tmp_path, [2, 3, 0])
    shards = {f"{kind}-0000{number}-of-00003.safetensors" for kind in ("model", "optimizer") for number in (1, 2, 3)}
    assert set(names(path)) == shards | {"state.json", "manifest.json"}
    loaded, weight = load_checkpoint(path), MODEL["encoder.weight"]
    assert torch.equal(loaded.model["encoder.weight"], weight)
    assert torch.equal(loaded.optimizer["exp_avg/encoder.weight"], weight)
    assert bits({"odd": loaded.model["odd"]}) == bits({"odd": MODEL["odd"]})
    for rows in (slice(0, 2), slice(1, 4), slice(2, 5), slice(4, 5), slice(5, 5)):
        partial = read_checkpoint(path, lambda name, rows=rows: slice(None) if name == "odd" else rows)
        assert torch.equal(partial.model["encoder.weight"], weight[rows])
        assert torch.equal(partial.optimizer["exp_avg/encoder.weight"], weight[rows])


def test_a_checkpoint_without_one_of_its_shards_is_not_used(tmp_path: Path):
    save(tmp_path, 3)
    path = save_sharded(tmp_path, [2, 3])
    (path / "optimizer-00002-of-00002.safetensors").unlink()
    latest, damaged = load_latest_checkpoint(tmp_path)
    assert latest is not None
    assert latest.train_state.step == 3
    assert "optimizer-00002-of-00002.safetensors" in damaged[0]
