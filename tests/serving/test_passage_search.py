"""Passage search: passages of whole sentences, their vectors on disk, and results that match a direct computation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from small_models import WORDS

from bertworks.corpus.text_shard import SplitDocument
from bertworks.errors import FolderError
from bertworks.inference.model import LoadedModel, load
from bertworks.serving.passage_search import PassageIndex, passages_of, write_passages, write_vectors
from bertworks.text.document import Document


def document(*sentences: str, source: str = "book.txt") -> SplitDocument:
    return SplitDocument(Document(sentences, source), "train")


@pytest.fixture(scope="module")
def model(folders: dict[str, Path], one_thread: None) -> LoadedModel:
    return load(folders["sentences"])


@pytest.fixture(scope="module")
def documents() -> list[SplitDocument]:
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, size=40)) + ". " for _ in range(60)]
    return [document(*texts[start : start + 6], source=f"{start}.txt") for start in range(0, 60, 6)]


@pytest.fixture(scope="module")
def folder(documents: list[SplitDocument], model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("index")
    write_passages(path, documents)
    write_vectors(path, model, lambda done: None)
    return path


def test_sentences_are_joined_until_a_passage_is_full():
    long = "x" * 200 + " "
    passages = list(passages_of([document("One. ", long, long, "Two."), document("Three.", source="other")]))
    assert [(passage.text[:4], passage.document, passage.sentence_index) for passage in passages] == [
        ("One.", "book.txt", 0),
        ("xxxx", "book.txt", 2),
        ("Thre", "other", 0),
    ]
    assert passages[1].text.endswith("Two.")


def test_a_sentence_longer_than_a_passage_is_not_split():
    (passage,) = passages_of([document("y" * 1_000)])
    assert len(passage.text) == 1_000


def test_whitespace_alone_is_not_a_passage():
    assert list(passages_of([document("\n ", "  ")])) == []


def test_results_are_the_passages_with_the_largest_cosine_similarity(folder, documents, model):
    index = PassageIndex(folder)
    texts = [passage.text for passage in passages_of(documents)]
    assert len(index) == len(texts)
    vectors = model.encode(texts)
    query = model.encode(["a charming film"])[0]
    cosines = vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    expected = np.argsort(-cosines, kind="stable")[:5]
    results = index.search(query, 5)
    index.close()
    assert [result["text"] for result in results] == [texts[i] for i in expected]
    np.testing.assert_allclose([result["score"] for result in results], cosines[expected], atol=2e-3)  # float16
    assert results[0]["document"].endswith(".txt")


def test_results_do_not_depend_on_the_block_size(folder, model, monkeypatch):
    index, query = PassageIndex(folder), model.encode(["who sat on the mat"])[0]
    expected = index.search(query, 7)
    monkeypatch.setattr("bertworks.serving.passage_search._BLOCK_SIZE", 3)
    assert [result["text"] for result in index.search(query, 7)] == [result["text"] for result in expected]
    index.close()


def test_a_large_top_k_returns_all_passages(folder, model):
    index = PassageIndex(folder)
    assert len(index.search(model.encode(["cat"])[0], 10**6)) == len(index)
    index.close()


def test_an_index_that_is_truncated_while_in_use_raises_an_error(folder, model, tmp_path):
    copy = tmp_path / "index"
    shutil.copytree(folder, copy)
    index = PassageIndex(copy)
    with (copy / "vectors.npy").open("r+b") as file:
        file.truncate(200)
    with pytest.raises(FolderError, match="truncated"):
        index.search(model.encode(["cat"])[0], 3)
    index.close()


def test_vectors_of_other_passages_are_rejected(folder, tmp_path):
    copy = tmp_path / "index"
    shutil.copytree(folder, copy)
    np.save(copy / "offsets.npy", np.zeros(3, dtype=np.int64))
    with pytest.raises(FolderError, match="do not match"):
        PassageIndex(copy)


def test_passages_are_json_lines(folder):
    lines = (folder / "passages.jsonl").read_text(encoding="utf-8").splitlines()
    assert set(json.loads(lines[0])) == {"text", "document", "sentence_index"}
