"""Search: passages of whole sentences, their vectors on disk, and the nearest as plain arithmetic finds them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from small_models import WORDS

from bertworks.corpus.text_shard import SplitDocument
from bertworks.errors import FolderError
from bertworks.inference.model import Model, load
from bertworks.serving.passage_search import PassageIndex, passages_of, write_passages, write_vectors
from bertworks.text.document import Document


def document(*sentences: str, source: str = "book.txt") -> SplitDocument:
    return SplitDocument(Document(sentences, source), "train")


@pytest.fixture(scope="module")
def model(folders: dict[str, Path], one_thread: None) -> Model:
    return load(folders["sentences"])


@pytest.fixture(scope="module")
def documents() -> list[SplitDocument]:
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(WORDS, size=40)) + ". " for _ in range(60)]
    return [document(*texts[start : start + 6], source=f"{start}.txt") for start in range(0, 60, 6)]


@pytest.fixture(scope="module")
def folder(documents: list[SplitDocument], model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("index")
    write_passages(path, documents)
    write_vectors(path, model, lambda done: None)
    return path


def test_sentences_are_put_together_until_a_passage_is_full():
    long = "x" * 200 + " "
    found = list(passages_of([document("One. ", long, long, "Two."), document("Three.", source="other")]))
    assert [(one.text[:4], one.document, one.sentence_index) for one in found] == [
        ("One.", "book.txt", 0),
        ("xxxx", "book.txt", 2),
        ("Thre", "other", 0),
    ]
    assert found[1].text.endswith("Two.")


def test_a_sentence_longer_than_a_passage_stays_whole():
    (found,) = passages_of([document("y" * 1_000)])
    assert len(found.text) == 1_000


def test_white_space_alone_is_no_passage():
    assert list(passages_of([document("\n ", "  ")])) == []


def test_the_nearest_passages_are_those_of_plain_arithmetic(folder, documents, model):
    index = PassageIndex(folder)
    texts = [passage.text for passage in passages_of(documents)]
    assert len(index) == len(texts)
    vectors = model.embed(texts)
    query = model.embed(["a charming film"])[0]
    cosines = vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    wanted = np.argsort(-cosines, kind="stable")[:5]
    found = index.search(query, 5)
    index.close()
    assert [one["text"] for one in found] == [texts[number] for number in wanted]
    np.testing.assert_allclose([one["score"] for one in found], cosines[wanted], atol=2e-3)  # half precision
    assert found[0]["document"].endswith(".txt")


def test_blocks_change_nothing(folder, model, monkeypatch):
    index, query = PassageIndex(folder), model.embed(["who sat on the mat"])[0]
    whole = index.search(query, 7)
    monkeypatch.setattr("bertworks.serving.passage_search._BLOCK_SIZE", 3)
    assert [one["text"] for one in index.search(query, 7)] == [one["text"] for one in whole]
    index.close()


def test_asking_for_more_than_there_are_gives_all(folder, model):
    index = PassageIndex(folder)
    assert len(index.search(model.embed(["cat"])[0], 10**6)) == len(index)
    index.close()


def test_an_index_that_is_cut_short_while_it_is_used_is_an_error_and_no_crash(folder, model, tmp_path):
    import shutil

    copy = tmp_path / "index"
    shutil.copytree(folder, copy)
    index = PassageIndex(copy)
    with (copy / "vectors.npy").open("r+b") as file:
        file.truncate(200)
    with pytest.raises(FolderError, match="cut short"):
        index.search(model.embed(["cat"])[0], 3)
    index.close()


def test_vectors_of_other_passages_are_refused(folder, tmp_path):
    import shutil

    copy = tmp_path / "index"
    shutil.copytree(folder, copy)
    np.save(copy / "offsets.npy", np.zeros(3, dtype=np.int64))
    with pytest.raises(FolderError, match="do not fit"):
        PassageIndex(copy)


def test_passages_are_lines_that_other_tools_read(folder):
    lines = (folder / "passages.jsonl").read_text(encoding="utf-8").splitlines()
    assert set(json.loads(lines[0])) == {"text", "document", "place"}
