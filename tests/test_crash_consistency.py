"""Crash consistency: after a kill or a power cut at any point of a write, the old state or the new one is read, and the
same command completes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numbered_corpus import KEEP_ALL
from recording_disk import RecordingDisk, recording, restore
from small_models import write_pretrained, write_tokenizer

from bertworks.commands.prepare import PrepareRequest, prepare, verify
from bertworks.corpus.units import PrepareSettings
from bertworks.embeddings.store import StoreSettings, VectorStore
from bertworks.embeddings.vectors import VectorBatch
from bertworks.errors import FolderError
from bertworks.models.folder import read_folder
from bertworks.records import Records, StepRecord, read_records
from bertworks.serving.bundle import BundleRequest, bundle, read_bundle
from bertworks.text.document import Counts
from bertworks.text.sources import ReadSettings, TextSource
from bertworks.training.checkpoint import keep_last, load_latest_checkpoint, save_checkpoint
from bertworks.training.loop import TrainState

pytestmark = pytest.mark.usefixtures("one_thread")


def check_states(disk: RecordingDisk, check: Callable[[Path], None], tmp_path: Path, min_states: int) -> None:
    """Write every recorded state to the recorded folder's path in a fresh place and check it."""
    assert len(disk.states) >= min_states
    for number, (state, event) in enumerate(disk.states.items()):
        folder = tmp_path / f"after-{number}" / disk.folder.name
        folder.mkdir(parents=True)
        restore(state, folder)
        try:
            check(folder)
        except Exception as error:
            raise AssertionError(f"{event}: {error}") from error


def tensors_of(folder: Path) -> dict[str, Any]:
    return {name: tensor.numpy().tobytes() for name, tensor in read_folder(folder).tensors.items()}


def read_or_absent(folder: Path) -> dict[str, Any] | None:
    """Return the tensors of a model; None if there is no folder."""
    return tensors_of(folder) if folder.exists() else None


def test_a_new_model_folder_is_complete_or_absent(tmp_path: Path):
    disk_folder = tmp_path / "disk"
    write_tokenizer(disk_folder / "model-vocabulary")
    with recording(disk_folder) as disk:
        write_pretrained(disk_folder / "model")
    expected = tensors_of(disk_folder / "model")

    def check(folder: Path) -> None:
        assert read_or_absent(folder / "model") in (None, expected)
        write_pretrained(folder / "model")
        assert tensors_of(folder / "model") == expected

    check_states(disk, check, tmp_path, 10)


def test_a_model_folder_that_is_written_again_is_the_old_or_the_new_one(tmp_path: Path):
    disk_folder = tmp_path / "disk"
    write_pretrained(disk_folder / "model", seed=0)
    old = tensors_of(disk_folder / "model")
    with recording(disk_folder) as disk:
        write_pretrained(disk_folder / "model", seed=1)
    new = tensors_of(disk_folder / "model")
    assert old != new

    def check(folder: Path) -> None:
        assert read_or_absent(folder / "model") in (old, new)

    check_states(disk, check, tmp_path, 10)


def test_the_latest_checkpoint_is_the_old_or_the_new_one(tmp_path: Path):
    disk_folder = tmp_path / "disk"

    def save(folder: Path, step: int) -> None:
        values = {"weight": torch.full((4,), float(step))}
        save_checkpoint(folder, values, values, TrainState(step=step), "recipe")
        keep_last(folder, 1, set())

    save(disk_folder, 1)
    with recording(disk_folder) as disk:
        save(disk_folder, 2)

    def check(folder: Path) -> None:
        checkpoint, _ = load_latest_checkpoint(folder)
        assert checkpoint is not None
        assert checkpoint.model["weight"].tolist() == [float(checkpoint.train_state.step)] * 4
        assert checkpoint.train_state.step in (1, 2)
        save(folder, 2)
        assert [path.name for path in folder.iterdir()] == ["step-00000002"]

    check_states(disk, check, tmp_path, 10)


def test_records_are_those_of_whole_steps_and_at_least_the_synced_ones(tmp_path: Path):
    disk_folder = tmp_path / "disk"
    disk_folder.mkdir()

    def step(number: int) -> StepRecord:
        return StepRecord(
            step=number,
            phase="128",
            losses={"mlm": 1.0},
            learning_rate=1e-3,
            seconds=1.0,
            num_tokens=10,
            grad_norm=1.0,
        )

    with recording(disk_folder) as disk, Records.open(disk_folder, None) as records:
        for number in (1, 2, 3):
            records.add(step(number))
            records.sync()

    def check(folder: Path) -> None:
        if not (folder / "metrics.jsonl").exists():
            return
        steps = [record.step for record in read_records(folder)]
        assert steps == list(range(1, len(steps) + 1))
        with Records.open(folder, len(steps)) as records:
            records.add(step(len(steps) + 1))
        assert len(list(read_records(folder))) == len(steps) + 1

    check_states(disk, check, tmp_path, 3)


def test_vectors_continue_to_the_same_bytes(tmp_path: Path):
    texts = ["a", "b", "c", "d"]

    def write(folder: Path) -> bytes:
        settings = StoreSettings(
            output=folder / "vectors.npy",
            vector_size=2,
            unit="texts",
            half=False,
            format="npy",
            identity={"model": "m"},
        )
        with VectorStore(settings) as store:
            for text in store.remaining(texts):
                vectors = np.full((1, 2), ord(text), dtype=np.float32)
                no_offsets = np.empty((0, 2), dtype=np.int64)
                store.append(VectorBatch(vectors, np.ones(1, dtype=np.int64), no_offsets, Counts(seen=1)))
            store.finish()
        return np.load(folder / "vectors.npy").tobytes()

    disk_folder = tmp_path / "disk"
    disk_folder.mkdir()
    with recording(disk_folder) as disk:
        expected = write(disk_folder)

    def check(folder: Path) -> None:
        if (folder / "vectors.npy").exists():
            assert np.load(folder / "vectors.npy").tobytes() == expected
        else:
            assert write(folder) == expected

    check_states(disk, check, tmp_path, 10)


def test_a_corpus_is_complete_or_is_continued(tmp_path: Path, vocabulary: Path):
    source = tmp_path / "text.txt"
    source.write_text("\n\n".join(f"one two {number}\nthree four" for number in range(4)))

    def write(folder: Path) -> str:
        request = PrepareRequest(
            sources=(TextSource(str(source)),),
            vocabulary=vocabulary,
            output=folder / "corpus",
            settings=PrepareSettings(held_out_ratio=0.0, clean=KEEP_ALL),
            read_settings=ReadSettings(lines="sentences"),
        )
        prepare(request, workers=1)
        return (folder / "corpus" / "manifest.json").read_text()

    disk_folder = tmp_path / "disk"
    disk_folder.mkdir()
    with recording(disk_folder) as disk:
        expected = write(disk_folder)

    def check(folder: Path) -> None:
        if (folder / "corpus" / "manifest.json").exists():
            verify(folder / "corpus")
        assert write(folder) == expected
        verify(folder / "corpus")

    check_states(disk, check, tmp_path, 30)


def test_a_bundle_is_complete_or_absent(tmp_path: Path, make_corpus: Callable[..., Any]):
    base = write_pretrained(tmp_path / "base")
    corpus = make_corpus([[5, 4, 6], [3], [7, 8]]).corpus.folder
    disk_folder = tmp_path / "disk"
    disk_folder.mkdir()

    def write(folder: Path) -> dict[str, bytes]:
        bundle(BundleRequest(runs=(str(base),), output=folder / "bundle", corpus=corpus))
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    with recording(disk_folder) as disk:
        expected = write(disk_folder)

    def check(folder: Path) -> None:
        if (folder / "bundle").exists():
            read_bundle(folder / "bundle")
        else:
            with pytest.raises(FolderError):
                read_bundle(folder / "bundle")
            assert write(folder) == expected

    check_states(disk, check, tmp_path, 20)
