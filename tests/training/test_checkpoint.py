"""Checkpoints: every bit comes back, a crash costs nothing older, and what is damaged is named and passed over."""

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

FILES = {"model.safetensors", "optimizer.safetensors", "standing.json", "manifest.json"}
MODEL = {
    "encoder.weight": torch.randn(5, 3, generator=torch.Generator().manual_seed(0)),
    "odd": torch.tensor([0.0, -0.0, float("inf"), float("nan"), 1e-45]),  # a denormal and others that rounding loses
    "turned": torch.arange(6.0).view(2, 3).t(),
}
OPTIMIZER = {"mean/encoder.weight": torch.full((5, 3), 1 / 3), "square/encoder.weight": torch.full((5, 3), 1e-30)}


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


def test_everything_comes_back_to_the_bit(tmp_path: Path):
    standing = TrainState(step=1_200, seconds=0.1 + 0.2, num_tokens=10**12, phase_steps={0: 1_000, 1: 200})
    path = save_checkpoint(tmp_path / "checkpoints", MODEL, OPTIMIZER, standing, "0123456789abcdef")
    assert path == tmp_path / "checkpoints" / "step-00001200"
    found = load_checkpoint(path)
    assert found.folder == path
    assert bits(dict(found.model)) == bits(MODEL)
    assert bits(dict(found.optimizer)) == bits(OPTIMIZER)
    assert {name: values.shape for name, values in found.model.items()} == {k: v.shape for k, v in MODEL.items()}
    assert found.train_state == standing
    assert found.recipe == "0123456789abcdef"


def test_a_checkpoint_before_the_first_step_has_no_optimizer_state(tmp_path: Path):
    found = load_checkpoint(save_checkpoint(tmp_path, MODEL, {}, TrainState(), ""))
    assert dict(found.optimizer) == {}
    assert found.train_state == TrainState()


def test_what_is_saved_is_free_of_what_comes_after(tmp_path: Path):
    parameter = torch.nn.Parameter(torch.ones(2))
    path = save_checkpoint(tmp_path, {"one": parameter}, {}, TrainState(step=1), "")
    with torch.no_grad():
        parameter.zero_()
    assert load_checkpoint(path).model["one"].tolist() == [1.0, 1.0]


def test_nothing_is_a_pickle_and_nothing_else_lies_there(tmp_path: Path):
    path = save(tmp_path, 3)
    assert set(names(path)) == FILES
    assert names(tmp_path) == ["step-00000003"]
    for file in path.iterdir():
        data = file.read_bytes()
        assert not data.startswith((b"\x80", b"PK"))  # a pickle, or a zip with one in it
        with pytest.raises(ValueError):
            list(pickletools.genops(data))


def test_the_manifest_holds_the_hash_of_every_other_file(tmp_path: Path):
    manifest = json.loads((save(tmp_path, 3) / "manifest.json").read_text())
    assert set(manifest) == FILES - {"manifest.json"}
    assert all(len(digest) == 64 for digest in manifest.values())


class Crash(BaseException):
    """What nobody catches, such as a Ctrl-C or the end of the process."""


CRASHES = ["save_file", "write_json", "sha256"]


def crashing(monkeypatch: pytest.MonkeyPatch, part: str, error: BaseException, after: int = 0) -> None:
    """Let a part of saving fail, after it went well so many times."""
    real: Callable[..., object] = getattr(checkpoint, part)
    calls = iter(range(100))

    def fails(*given: object) -> object:
        if next(calls) >= after:
            raise error
        return real(*given)

    monkeypatch.setattr(checkpoint, part, fails)


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("part", CRASHES)
def test_a_crash_while_writing_leaves_the_older_ones_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, after: int
):
    save(tmp_path, 10)
    save(tmp_path, 20)
    with monkeypatch.context() as patched:
        crashing(patched, part, Crash(), after)
        with pytest.raises(Crash):
            save(tmp_path, 30)
    assert names(tmp_path) == ["step-00000010", "step-00000020"]
    found, damaged = load_latest_checkpoint(tmp_path)
    assert found is not None
    assert (found.train_state.step, damaged) == (20, [])
    assert load_checkpoint(save(tmp_path, 30)).train_state.step == 30


@pytest.mark.parametrize("part", CRASHES)
def test_a_crash_while_writing_the_same_step_again_leaves_it_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
):
    save(tmp_path, 10)
    with monkeypatch.context() as patched:
        crashing(patched, part, Crash(), 1)
        with pytest.raises(Crash):
            save(tmp_path, 10)
    assert load_checkpoint(tmp_path / "step-00000010").train_state.step == 10


def test_the_same_step_may_be_saved_again(tmp_path: Path):
    save(tmp_path, 10)
    save_checkpoint(tmp_path, {"other": torch.ones(1)}, {}, TrainState(step=10), "")
    assert names(tmp_path) == ["step-00000010"]
    assert set(load_checkpoint(tmp_path / "step-00000010").model) == {"other"}


def test_what_a_killed_process_left_is_never_taken_and_removed_by_the_next_save(tmp_path: Path):
    save(tmp_path, 10)
    for left in (".step-00000020.part", ".step-00000005.4711.part", ".step-00000010.old"):
        (tmp_path / left).mkdir()
        (tmp_path / left / "model.safetensors").write_bytes(b"half")
    found, damaged = load_latest_checkpoint(tmp_path)
    assert found is not None
    assert (found.train_state.step, damaged) == (10, [])
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
    "truncated": (truncate, "model.safetensors is not what was written"),
    "a bit flipped in the weights": (flip("model.safetensors"), "model.safetensors is not what was written"),
    "a bit flipped in the optimizer": (flip("optimizer.safetensors"), "optimizer.safetensors is not what was written"),
    "a bit flipped in the standing": (flip("standing.json"), "standing.json is not what was written"),
    "a file deleted": (lambda path: (path / "optimizer.safetensors").unlink(), "optimizer.safetensors"),
    "no manifest": (lambda path: (path / "manifest.json").unlink(), "manifest.json"),
    "a manifest cut short": (lambda path: os.truncate(path / "manifest.json", 40), "damaged"),
    "a manifest without names": (empty_manifest, "damaged: 'model.safetensors'"),
    "a manifest of something else": (foreign_manifest, "damaged"),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_last_good_one_used(
    tmp_path: Path, damage: Callable[[Path], None], reason: str
):
    for step in (10, 20, 30):
        save(tmp_path, step)
    damage(tmp_path / "step-00000030")
    with pytest.raises(FolderError, match=reason):
        load_checkpoint(tmp_path / "step-00000030")
    found, damaged = load_latest_checkpoint(tmp_path)
    assert found is not None
    assert found.train_state.step == 20
    assert len(damaged) == 1
    assert damaged[0].startswith(f"checkpoint {tmp_path / 'step-00000030'}")
    assert reason in damaged[0]


def test_where_all_are_damaged_or_none_is_there_nothing_is_returned(tmp_path: Path):
    assert load_latest_checkpoint(tmp_path / "nowhere") == (None, [])
    for step in (10, 20):
        truncate(save(tmp_path, step))
    found, damaged = load_latest_checkpoint(tmp_path)
    assert found is None
    assert [f"step-000000{step}" in text for step, text in zip((20, 10), damaged, strict=True)] == [True, True]


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("part", "error"),
    [
        ("save_file", SafetensorError("I/O error: No space left on device (os error 28)")),
        ("save_file", FULL),
        ("sha256", FULL),
    ],
)
def test_a_full_disk_is_one_sentence_that_says_what_to_do_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, error: Exception
):
    save(tmp_path, 10)
    with monkeypatch.context() as patched:
        crashing(patched, part, error)
        with pytest.raises(FolderError) as caught:
            save(tmp_path, 20)
    text = str(caught.value)
    assert text.startswith(f"cannot write {tmp_path}")
    assert "step-00000020" in text
    assert "free some space" in text
    assert "\n" not in text
    assert names(tmp_path) == ["step-00000010"]
    assert load_checkpoint(tmp_path / "step-00000010").train_state.step == 10


def test_the_newest_are_kept_and_the_best(tmp_path: Path):
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


def test_damaged_ones_do_not_crowd_out_what_is_saved_after_going_back_behind_them(tmp_path: Path):
    for step in (10, 20, 30):
        save(tmp_path, step)
    for step in (20, 30):
        truncate(tmp_path / f"step-000000{step}")
    found, _ = load_latest_checkpoint(tmp_path)
    assert found is not None
    save(tmp_path, found.train_state.step + 5)
    keep_last(tmp_path, 2, set())
    found, damaged = load_latest_checkpoint(tmp_path)
    assert found is not None
    assert (found.train_state.step, damaged) == (15, [])
    assert names(tmp_path) == ["step-00000010", "step-00000015"]


def test_checkpoints_are_listed_oldest_first_and_files_are_none(tmp_path: Path):
    for step in (100, 9, 20):
        save(tmp_path, step) if step == 100 else (tmp_path / f"step-{step:08d}").mkdir()
    (tmp_path / "step-notes.txt").write_text("mine")
    found = [path.name for path in checkpoints_in(tmp_path)]
    assert found == ["step-00000009", "step-00000020", "step-00000100"]


def save_in_parts(folder: Path, rows: list[int]) -> Path:
    """Let so many threads write the rows of MODEL's first tensor and of its moment together, as processes would."""
    barrier, texts = threading.Barrier(len(rows)), [""] * len(rows)
    ends = torch.tensor(rows).cumsum(0).tolist()

    def exchange(number: int, text: str) -> list[str]:
        texts[number] = text
        barrier.wait(10)
        found = list(texts)
        barrier.wait(10)
        return found

    def write(number: int) -> Path:
        own = slice(ends[number] - rows[number], ends[number])
        model = {"encoder.weight": MODEL["encoder.weight"][own]}
        if number == 0:
            model["odd"] = MODEL["odd"]  # what is not spread is the first one's
        moments = {"mean/encoder.weight": MODEL["encoder.weight"][own]} if rows[number] else {}
        crew = CheckpointProcessGroup(number, len(rows), lambda text: exchange(number, text))
        return save_checkpoint(folder, model, moments, TrainState(step=7), "", crew)

    with ThreadPoolExecutor(len(rows)) as threads:
        return set(threads.map(write, range(len(rows)))).pop()


def test_parts_are_put_together_again_or_read_by_rows(tmp_path: Path):
    path = save_in_parts(tmp_path, [2, 3, 0])
    parts = {f"{kind}-0000{number}-of-00003.safetensors" for kind in ("model", "optimizer") for number in (1, 2, 3)}
    assert set(names(path)) == parts | {"standing.json", "manifest.json"}
    found, weight = load_checkpoint(path), MODEL["encoder.weight"]
    assert torch.equal(found.model["encoder.weight"], weight)
    assert torch.equal(found.optimizer["mean/encoder.weight"], weight)
    assert bits({"odd": found.model["odd"]}) == bits({"odd": MODEL["odd"]})
    for rows in (slice(0, 2), slice(1, 4), slice(2, 5), slice(4, 5), slice(5, 5)):
        some = read_checkpoint(path, lambda name, rows=rows: slice(None) if name == "odd" else rows)
        assert torch.equal(some.model["encoder.weight"], weight[rows])
        assert torch.equal(some.optimizer["mean/encoder.weight"], weight[rows])


def test_a_checkpoint_that_lacks_a_part_is_not_used(tmp_path: Path):
    save(tmp_path, 3)
    path = save_in_parts(tmp_path, [2, 3])
    (path / "optimizer-00002-of-00002.safetensors").unlink()
    found, damaged = load_latest_checkpoint(tmp_path)
    assert found is not None
    assert found.train_state.step == 3
    assert "optimizer-00002-of-00002.safetensors" in damaged[0]
