"""Vectors on disk: .npy arrays, other formats, and resumed runs."""

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from killed_child import run_killed

from bertworks.embeddings import formats
from bertworks.embeddings.formats import check_output, read_metadata
from bertworks.embeddings.store import GrowingArray, StoreSettings, VectorStore, hash_texts
from bertworks.embeddings.vectors import VectorBatch
from bertworks.errors import FolderError, InputError
from bertworks.text.document import Counts

TEXTS = ["a b", "", "c"]


def settings(output: Path, **changes: Any) -> StoreSettings:
    defaults = StoreSettings(
        output=output, vector_size=2, unit="texts", half=False, format="npy", identity={"model": "m"}
    )
    return replace(defaults, **changes)


def text_batch(*vectors: list[float]) -> VectorBatch:
    """A batch of texts with one vector each."""
    ones = np.ones(len(vectors), dtype=np.int64)
    no_offsets = np.empty((0, 2), dtype=np.int64)
    return VectorBatch(np.array(vectors, dtype=np.float32), ones, no_offsets, Counts(seen=len(vectors)))


def token_batch(*texts: list[tuple[int, int]]) -> VectorBatch:
    """A batch of tokens, given by their offsets; the vector of (start, end) is [start / 8, end / 8]."""
    offsets = np.array([offset for text in texts for offset in text], dtype=np.int64).reshape(-1, 2)
    return VectorBatch(offsets.astype(np.float32) / 8, np.array(list(map(len, texts))), offsets)


TOKEN_BATCHES = (token_batch([(0, 1), (2, 3)], []), token_batch([(0, 1)]))


def write(settings: StoreSettings, texts: Iterable[str], *batches: VectorBatch, finish: bool = True) -> None:
    with VectorStore(settings) as store:
        remaining = store.remaining(texts)
        for batch in batches:
            for _ in range(batch.num_texts):
                next(remaining)
            store.append(batch)
        assert next(remaining, None) is None or not finish
        if finish:
            store.finish()


def test_an_appended_array_is_a_valid_npy_file_after_every_flush(tmp_path: Path):
    array = GrowingArray(tmp_path / "a.npy", np.float32, (2,), 0)
    array.flush()
    assert np.load(tmp_path / "a.npy").shape == (0, 2)
    array.append(np.array([[1, 2], [3, 4]], dtype=np.float32))
    array.flush()
    array.append(np.array([[5, 6]], dtype=np.float32))
    array.flush()
    array.close()
    loaded = np.load(tmp_path / "a.npy", mmap_mode="r", allow_pickle=False)
    assert loaded.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert loaded.dtype == np.float32
    assert loaded.offset % 64 == 0  # aligned, as in numpy's files


def test_a_reopened_array_is_truncated_to_num_rows(tmp_path: Path):
    array = GrowingArray(tmp_path / "a.npy", np.int64, (), 0)
    array.append(np.arange(5))
    array.close()
    reopened = GrowingArray(tmp_path / "a.npy", np.int64, (), 2)
    reopened.append(np.array([7]))
    reopened.flush()
    reopened.close()
    assert np.load(tmp_path / "a.npy").tolist() == [0, 1, 7]
    with pytest.raises(FolderError, match="shorter than its run recorded"):
        GrowingArray(tmp_path / "a.npy", np.int64, (), 4)


def test_text_vectors_become_one_file_with_a_metadata_file(tmp_path: Path):
    output = tmp_path / "made" / "v.npy"
    write(settings(output), TEXTS, text_batch([1, 2], [3, 4]), text_batch([5, 6]))
    assert np.load(output, mmap_mode="r").tolist() == [[1, 2], [3, 4], [5, 6]]
    assert sorted(path.name for path in output.parent.iterdir()) == ["v.npy", "v.npy.json"]
    metadata = read_metadata(output)
    assert metadata is not None
    assert metadata["model"] == "m"
    assert metadata["counts"] == {"seen": 3}
    assert (metadata["texts"], metadata["texts_sha256"]) == hash_texts(TEXTS)


def test_half_precision_can_be_written(tmp_path: Path):
    write(settings(tmp_path / "v.npy", half=True), ["a"], text_batch([0.5, 1 / 3]))
    loaded = np.load(tmp_path / "v.npy")
    assert loaded.dtype == np.float16
    assert loaded.tolist() == [[0.5, float(np.float16(1 / 3))]]


def test_token_vectors_become_a_folder_with_index_and_offsets(tmp_path: Path):
    output = tmp_path / "tokens"
    write(settings(output, unit="tokens"), TEXTS, *TOKEN_BATCHES)
    assert sorted(path.name for path in output.iterdir()) == [
        "index.npy",
        "manifest.json",
        "offsets.npy",
        "vectors.npy",
    ]
    assert np.load(output / "vectors.npy").tolist() == [[0, 0.125], [0.25, 0.375], [0, 0.125]]
    assert np.load(output / "offsets.npy").tolist() == [[0, 1], [2, 3], [0, 1]]
    assert np.load(output / "index.npy").tolist() == [0, 2, 2, 3]  # text i has the rows index[i] to index[i + 1]
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]


def test_an_existing_vectors_folder_is_replaced(tmp_path: Path):
    output = tmp_path / "tokens"
    for texts, batches in ((TEXTS, TOKEN_BATCHES), (["x"], (token_batch([(0, 1)]),))):
        check_output(output, "tokens", "npy")
        write(settings(output, unit="tokens"), texts, *batches)
    assert np.load(output / "index.npy").tolist() == [0, 1]


def test_json_lines_have_text_offsets_and_vector(tmp_path: Path):
    write(settings(tmp_path / "t.jsonl", format="jsonl"), ["a", "b"], text_batch([1, 0.1], [-1e-8, 3]))
    loaded = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert loaded == [{"text": 0, "vector": [1.0, 0.1]}, {"text": 1, "vector": [-1e-8, 3.0]}]
    write(settings(tmp_path / "p.jsonl", format="jsonl", unit="tokens"), TEXTS, *TOKEN_BATCHES)
    loaded = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert loaded == [
        {"text": 0, "start": 0, "end": 1, "vector": [0.0, 0.125]},
        {"text": 0, "start": 2, "end": 3, "vector": [0.25, 0.375]},
        {"text": 2, "start": 0, "end": 1, "vector": [0.0, 0.125]},
    ]
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("half", [False, True])
def test_parquet_has_text_offsets_and_vector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: bool):
    import pyarrow.parquet as pq

    monkeypatch.setattr(formats, "_BLOCK", 2)
    write(settings(tmp_path / "p.parquet", format="parquet", unit="words", half=half), TEXTS, *TOKEN_BATCHES)
    table = pq.read_table(tmp_path / "p.parquet")
    assert table.schema.field("vector").type.value_type == ("halffloat" if half else "float")
    assert table.to_pydict() == {
        "text": [0, 0, 2],
        "start": [0, 2, 0],
        "end": [1, 3, 1],
        "vector": [[0.0, 0.125], [0.25, 0.375], [0.0, 0.125]],
    }
    write(settings(tmp_path / "t.parquet", format="parquet", half=half), ["a"], text_batch([1, 2]))
    assert pq.read_table(tmp_path / "t.parquet").to_pydict() == {"text": [0], "vector": [[1.0, 2.0]]}


@pytest.mark.parametrize("format", ["npy", "jsonl"])
@pytest.mark.parametrize("unit", ["texts", "tokens"])
def test_a_resumed_run_gives_the_same_bytes(tmp_path: Path, unit: str, format: str):  # noqa: A002
    batches = TOKEN_BATCHES if unit == "tokens" else (text_batch([1, 2], [3, 4]), text_batch([5, 6]))
    complete, interrupted = (
        settings(tmp_path / name / "v", unit=unit, format=format) for name in ("complete", "interrupted")
    )
    write(complete, TEXTS, *batches)
    write(interrupted, TEXTS, batches[0], finish=False)
    with (interrupted.parts_folder / "vectors.npy").open("ab") as file:  # written after the last record
        file.write(b"half a row of")
    with VectorStore(interrupted) as store:
        assert store.num_resumed == 2
        assert list(store.remaining(TEXTS)) == ["c"]
        store.append(batches[1])
        store.finish()
    for path in (tmp_path / "complete").rglob("*"):
        assert (
            path.is_dir()
            or path.read_bytes() == (tmp_path / "interrupted" / path.relative_to(tmp_path / "complete")).read_bytes()
        )
    assert len(list((tmp_path / "complete").rglob("*"))) == len(list((tmp_path / "interrupted").rglob("*")))


def test_a_run_killed_before_its_first_record_starts_again(tmp_path: Path):
    run = settings(tmp_path / "v.npy")
    run.parts_folder.mkdir()
    (run.parts_folder / "vectors.npy").write_bytes(b"something")
    write(run, ["a"], text_batch([1, 2]))
    assert np.load(run.output).tolist() == [[1, 2]]


def test_a_run_killed_while_moving_its_vectors_starts_again(tmp_path: Path):
    run = settings(tmp_path / "v.npy")
    write(run, ["a"], text_batch([1, 2]), finish=False)
    (run.parts_folder / "vectors.npy").rename(run.output)
    write(run, ["a"], text_batch([1, 2]))
    assert np.load(run.output).tolist() == [[1, 2]]


def test_a_run_with_other_settings_or_texts_is_not_resumed(tmp_path: Path):
    run = settings(tmp_path / "v.npy")
    write(run, ["a", "b"], text_batch([1, 2], [3, 4]), finish=False)
    with pytest.raises(FolderError, match=r"started with another model \(m, now n\); use the same options"):
        VectorStore(replace(run, identity={"model": "n"}))
    for texts in (["a", "c"], ["a"], ["ab", ""]):
        with VectorStore(run) as store, pytest.raises(InputError, match="the first 2 texts have changed"):
            next(store.remaining(texts))


def test_an_empty_run_leaves_no_files(tmp_path: Path):
    write(settings(tmp_path / "v.npy"), [], finish=False)
    assert list(tmp_path.iterdir()) == []


def test_two_runs_cannot_write_to_one_output(tmp_path: Path):
    run = settings(tmp_path / "v.npy")
    with VectorStore(run), pytest.raises(FolderError, match="another run is writing"):
        VectorStore(run)


def test_a_lock_and_temporary_files_of_killed_runs_do_not_become_vectors(tmp_path: Path):
    run = settings(tmp_path / "tokens", unit="tokens")
    write(run, TEXTS, TOKEN_BATCHES[0], finish=False)
    for name in ("lock", ".progress.json.host.12.part"):  # an earlier version had its lock in the parts
        (run.parts_folder / name).touch()
    write(run, TEXTS, TOKEN_BATCHES[1])
    assert sorted(path.name for path in run.output.iterdir()) == [
        "index.npy",
        "manifest.json",
        "offsets.npy",
        "vectors.npy",
    ]


@pytest.mark.parametrize("changes", [{"unit": "tokens"}, {}, {"format": "jsonl"}])
def test_killed_at_any_change_a_run_that_replaces_vectors_comes_to_its_end(tmp_path: Path, changes: dict[str, str]):
    batches = TOKEN_BATCHES if changes.get("unit") else (text_batch([1, 2], [3, 4]), text_batch([5, 6]))
    run = settings(tmp_path / "whole", **changes)
    write(run, TEXTS, *batches)
    expected = read_files(tmp_path)
    was_killed, number = True, 0
    while was_killed:
        number += 1
        folder = tmp_path / f"killed-{number}"
        again = replace(run, output=folder / "whole")
        write(replace(again, identity={"model": "old"}), TEXTS, *batches)
        was_killed = run_killed(partial(write_rest, again, batches), folder, number)
        metadata = read_metadata(again.output)
        if again.output.exists() and metadata is not None:
            assert metadata["model"] in ("m", "old")
        check_output(again.output, again.unit, again.format)
        write_rest(again, batches)
        assert read_files(folder) == expected
    assert number > 8


def read_files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "killed" not in str(path.relative_to(folder))
    }


def write_rest(run: StoreSettings, batches: tuple[VectorBatch, ...]) -> None:
    """Append the batches that an earlier run did not append, and finish."""
    with VectorStore(run) as store:
        remaining, num_done = store.remaining(TEXTS), store.num_resumed
        for batch in batches:
            if num_done >= batch.num_texts:
                num_done -= batch.num_texts
                continue
            for _ in range(batch.num_texts):
                next(remaining)
            store.append(batch)
        next(remaining, None)
        store.finish()


def test_existing_files_are_not_overwritten(tmp_path: Path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("keep")
    with pytest.raises(FolderError, match="contains something other than vectors of words"):
        check_output(tmp_path / "notes", "words", "npy")
    with pytest.raises(FolderError, match="is a folder, but the output is a file of vectors"):
        check_output(tmp_path / "notes", "texts", "npy")
    with pytest.raises(FolderError, match="a part of that path is a file"):
        VectorStore(settings(tmp_path / "notes" / "mine.txt" / "v.npy"))


def test_metadata_of_foreign_files_are_none(tmp_path: Path):
    np.save(tmp_path / "v.npy", np.zeros((1, 2)))
    assert read_metadata(tmp_path / "v.npy") is None


@pytest.mark.parametrize(
    "content", [[], {}, 3, {"texts": "1"}, {"rows": -1}, {"counts": {"seen": "1"}}, {"texts": None}]
)
def test_progress_that_is_damaged_is_named(tmp_path: Path, content: Any):
    run = settings(tmp_path / "v.npy")
    write(run, TEXTS, text_batch([1, 2]), finish=False)
    path = tmp_path / ".v.npy.parts" / "progress.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **content} if content and content != 3 else content))
    with pytest.raises(FolderError, match=r"progress\.json is damaged .* remove the folder .*\.parts and start again"):
        VectorStore(run)


@pytest.mark.parametrize(("unit", "name"), [("texts", "cls"), ("words", "first")])
def test_metadata_written_under_a_former_name_of_the_pooling_are_read(tmp_path: Path, unit: str, name: str):
    """A word has a first token, but no [CLS]: there the name has not changed."""
    (tmp_path / "v.npy.json").write_text(json.dumps({"unit": unit, "pooling": ["first", "max"]}))
    assert read_metadata(tmp_path / "v.npy") == {"unit": unit, "pooling": [name, "max"]}


def test_a_run_started_under_a_former_name_of_the_pooling_is_continued(tmp_path: Path):
    written, current = ({"model": "m", "pooling": [name]} for name in ("first", "cls"))
    write(settings(tmp_path / "v.npy", identity=written), TEXTS, text_batch([1, 2]), finish=False)
    write(settings(tmp_path / "v.npy", identity=current), TEXTS, text_batch([3, 4], [5, 6]))
    assert np.load(tmp_path / "v.npy").tolist() == [[1, 2], [3, 4], [5, 6]]
    assert (read_metadata(tmp_path / "v.npy") or {})["pooling"] == ["cls"]
