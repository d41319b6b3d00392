"""Vectors on disk: standard arrays, other formats, and runs that are taken up where they stood."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertworks.embeddings import formats
from bertworks.embeddings.formats import check_output, read_metadata
from bertworks.embeddings.store import GrowingArray, StoreSettings, VectorStore, hash_texts
from bertworks.embeddings.vectors import VectorBatch
from bertworks.errors import FolderError, InputError
from bertworks.text.document import Counts

TEXTS = ["a b", "", "c"]


def settings(out: Path, **changed: Any) -> StoreSettings:
    return replace(StoreSettings(out, 2, "texts", False, "npy", {"model": "m"}), **changed)


def whole(*rows: list[float]) -> VectorBatch:
    """A portion of texts with a vector each."""
    ones = np.ones(len(rows), dtype=np.int64)
    return VectorBatch(np.array(rows, dtype=np.float32), ones, np.empty((0, 2), dtype=np.int64), Counts(seen=len(rows)))


def parts(*texts: list[tuple[int, int]]) -> VectorBatch:
    """A portion of pieces, given by their offsets; the vector of (start, end) is [start / 8, end / 8]."""
    flat = [place for places in texts for place in places]
    vectors = np.array(flat, dtype=np.float32).reshape(-1, 2) / 8
    return VectorBatch(vectors, np.array([len(one) for one in texts]), np.array(flat, dtype=np.int64).reshape(-1, 2))


PIECES = (parts([(0, 1), (2, 3)], []), parts([(0, 1)]))


def write(settings: StoreSettings, texts: Iterable[str], *portions: VectorBatch, finish: bool = True) -> None:
    with VectorStore(settings) as store:
        todo = store.remaining(texts)
        for portion in portions:
            for _ in range(portion.num_texts):
                next(todo)
            store.append(portion)
        assert next(todo, None) is None or not finish
        if finish:
            store.finish()


def test_an_array_grows_and_is_a_standard_file_at_every_flush(tmp_path: Path):
    array = GrowingArray(tmp_path / "a.npy", np.float32, (2,), 0)
    array.flush()
    assert np.load(tmp_path / "a.npy").shape == (0, 2)
    array.append(np.array([[1, 2], [3, 4]], dtype=np.float32))
    array.flush()
    array.append(np.array([[5, 6]], dtype=np.float32))
    array.flush()
    array.close()
    found = np.load(tmp_path / "a.npy", mmap_mode="r", allow_pickle=False)
    assert found.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert found.dtype == np.float32
    assert found.offset % 64 == 0  # aligned, as numpy's own files are


def test_an_opened_array_is_cut_to_what_counts(tmp_path: Path):
    array = GrowingArray(tmp_path / "a.npy", np.int64, (), 0)
    array.append(np.arange(5))
    array.close()
    again = GrowingArray(tmp_path / "a.npy", np.int64, (), 2)
    again.append(np.array([7]))
    again.flush()
    again.close()
    assert np.load(tmp_path / "a.npy").tolist() == [0, 1, 7]
    with pytest.raises(FolderError, match="shorter than its run recorded"):
        GrowingArray(tmp_path / "a.npy", np.int64, (), 4)


def test_texts_become_one_file_with_its_facts_beside_it(tmp_path: Path):
    out = tmp_path / "made" / "v.npy"
    write(settings(out), TEXTS, whole([1, 2], [3, 4]), whole([5, 6]))
    assert np.load(out, mmap_mode="r").tolist() == [[1, 2], [3, 4], [5, 6]]
    assert sorted(path.name for path in out.parent.iterdir()) == ["v.npy", "v.npy.json"]
    facts = read_metadata(out)
    assert facts is not None
    assert facts["model"] == "m"
    assert facts["counts"] == {"seen": 3}
    assert (facts["texts"], facts["texts_sha256"]) == hash_texts(TEXTS)


def test_half_precision_is_written_when_asked_for(tmp_path: Path):
    write(settings(tmp_path / "v.npy", half=True), ["a"], whole([0.5, 1 / 3]))
    found = np.load(tmp_path / "v.npy")
    assert found.dtype == np.float16
    assert found.tolist() == [[0.5, float(np.float16(1 / 3))]]


def test_pieces_become_a_folder_with_index_and_offsets(tmp_path: Path):
    out = tmp_path / "pieces"
    write(settings(out, unit="pieces"), TEXTS, *PIECES)
    assert sorted(path.name for path in out.iterdir()) == ["index.npy", "manifest.json", "offsets.npy", "vectors.npy"]
    assert np.load(out / "vectors.npy").tolist() == [[0, 0.125], [0.25, 0.375], [0, 0.125]]
    assert np.load(out / "offsets.npy").tolist() == [[0, 1], [2, 3], [0, 1]]
    assert np.load(out / "index.npy").tolist() == [0, 2, 2, 3]  # text i has the rows index[i] to index[i + 1]
    assert [path.name for path in tmp_path.iterdir()] == ["pieces"]


def test_a_folder_of_vectors_is_replaced_when_made_again(tmp_path: Path):
    out = tmp_path / "pieces"
    for texts, portions in ((TEXTS, PIECES), (["x"], (parts([(0, 1)]),))):
        check_output(out, "pieces", "npy")
        write(settings(out, unit="pieces"), texts, *portions)
    assert np.load(out / "index.npy").tolist() == [0, 1]


def test_json_lines_tell_text_place_and_vector(tmp_path: Path):
    write(settings(tmp_path / "t.jsonl", format="jsonl"), ["a", "b"], whole([1, 0.1], [-1e-8, 3]))
    found = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert found == [{"text": 0, "vector": [1.0, 0.1]}, {"text": 1, "vector": [-1e-8, 3.0]}]
    write(settings(tmp_path / "p.jsonl", format="jsonl", unit="pieces"), TEXTS, *PIECES)
    found = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert found == [
        {"text": 0, "start": 0, "end": 1, "vector": [0.0, 0.125]},
        {"text": 0, "start": 2, "end": 3, "vector": [0.25, 0.375]},
        {"text": 2, "start": 0, "end": 1, "vector": [0.0, 0.125]},
    ]
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("half", [False, True])
def test_parquet_tells_text_place_and_vector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: bool):
    import pyarrow.parquet as pq

    monkeypatch.setattr(formats, "_BLOCK_SIZE", 2)
    write(settings(tmp_path / "p.parquet", format="parquet", unit="words", half=half), TEXTS, *PIECES)
    table = pq.read_table(tmp_path / "p.parquet")
    assert table.schema.field("vector").type.value_type == ("halffloat" if half else "float")
    assert table.to_pydict() == {
        "text": [0, 0, 2],
        "start": [0, 2, 0],
        "end": [1, 3, 1],
        "vector": [[0.0, 0.125], [0.25, 0.375], [0.0, 0.125]],
    }
    write(settings(tmp_path / "t.parquet", format="parquet", half=half), ["a"], whole([1, 2]))
    assert pq.read_table(tmp_path / "t.parquet").to_pydict() == {"text": [0], "vector": [[1.0, 2.0]]}


@pytest.mark.parametrize("format", ["npy", "jsonl"])
@pytest.mark.parametrize("unit", ["texts", "pieces"])
def test_a_run_taken_up_gives_the_same_bytes(tmp_path: Path, unit: str, format: str):  # noqa: A002
    portions = PIECES if unit == "pieces" else (whole([1, 2], [3, 4]), whole([5, 6]))
    straight, broken = (settings(tmp_path / name / "v", unit=unit, format=format) for name in ("straight", "broken"))
    write(straight, TEXTS, *portions)
    write(broken, TEXTS, portions[0], finish=False)
    with (broken.parts_folder / "vectors.npy").open("ab") as file:  # what was written after the last record
        file.write(b"half a row of")
    with VectorStore(broken) as store:
        assert store.num_resumed == 2
        assert list(store.remaining(TEXTS)) == ["c"]
        store.append(portions[1])
        store.finish()
    for path in (tmp_path / "straight").rglob("*"):
        assert (
            path.is_dir()
            or path.read_bytes() == (tmp_path / "broken" / path.relative_to(tmp_path / "straight")).read_bytes()
        )
    assert len(list((tmp_path / "straight").rglob("*"))) == len(list((tmp_path / "broken").rglob("*")))


def test_a_run_killed_before_its_first_record_begins_anew(tmp_path: Path):
    one = settings(tmp_path / "v.npy")
    one.parts_folder.mkdir()
    (one.parts_folder / "vectors.npy").write_bytes(b"something")
    write(one, ["a"], whole([1, 2]))
    assert np.load(one.output).tolist() == [[1, 2]]


def test_a_run_killed_while_its_vectors_were_brought_home_begins_anew(tmp_path: Path):
    one = settings(tmp_path / "v.npy")
    write(one, ["a"], whole([1, 2]), finish=False)
    (one.parts_folder / "vectors.npy").rename(one.output)
    write(one, ["a"], whole([1, 2]))
    assert np.load(one.output).tolist() == [[1, 2]]


def test_a_run_of_other_settings_or_texts_is_not_taken_up(tmp_path: Path):
    one = settings(tmp_path / "v.npy")
    write(one, ["a", "b"], whole([1, 2], [3, 4]), finish=False)
    with pytest.raises(FolderError, match=r"begun with another model \(m, now n\); run the command that began it"):
        VectorStore(replace(one, identity={"model": "n"}))
    for texts in (["a", "c"], ["a"], ["ab", ""]):
        with VectorStore(one) as store, pytest.raises(InputError, match="the first 2 texts are no longer those"):
            next(store.remaining(texts))


def test_a_run_that_did_nothing_leaves_nothing(tmp_path: Path):
    write(settings(tmp_path / "v.npy"), [], finish=False)
    assert list(tmp_path.iterdir()) == []


def test_two_runs_do_not_write_to_one_place(tmp_path: Path):
    one = settings(tmp_path / "v.npy")
    with VectorStore(one), pytest.raises(FolderError, match="another run is writing"):
        VectorStore(one)


def test_what_stands_in_the_way_is_not_overwritten(tmp_path: Path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("keep")
    with pytest.raises(FolderError, match="holds something else than vectors of words"):
        check_output(tmp_path / "notes", "words", "npy")
    with pytest.raises(FolderError, match="is a folder, but a file of vectors"):
        check_output(tmp_path / "notes", "texts", "npy")
    with pytest.raises(FolderError, match="a part of that path is a file"):
        VectorStore(settings(tmp_path / "notes" / "mine.txt" / "v.npy"))


def test_facts_are_none_where_nobody_wrote_them(tmp_path: Path):
    np.save(tmp_path / "v.npy", np.zeros((1, 2)))
    assert read_metadata(tmp_path / "v.npy") is None
