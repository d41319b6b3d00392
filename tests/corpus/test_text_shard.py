"""A shard of clean text: round trip through its file, and errors that name the damaged line."""

from __future__ import annotations

from pathlib import Path

import pytest
from damage import flip_bit
from hypothesis import given
from hypothesis import strategies as st

from bertworks.corpus.text_shard import SplitDocument, read_text, write_text
from bertworks.disk import sha256
from bertworks.errors import FolderError
from bertworks.text.document import Document

DOCUMENTS = [
    SplitDocument(Document(('He said: "No." ', "She\tleft.\n"), "a.txt"), "train"),
    SplitDocument(Document(("今天下雨。", "我在家。\n"), "b.txt:3"), "held-out"),
    SplitDocument(Document(("odd line ends \u2028 and \x85 inside\n",), "c.txt#d"), "train"),
]


def test_documents_round_trip(tmp_path: Path) -> None:
    write_text(tmp_path / "shard.jsonl", DOCUMENTS)
    assert list(read_text(tmp_path / "shard.jsonl")) == DOCUMENTS


@given(sentences=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=5))
def test_any_text_round_trips(sentences: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    documents = [SplitDocument(Document(tuple(sentences), "any"), "train")] * 2
    write_text(path, documents)
    assert list(read_text(path)) == documents


@pytest.mark.parametrize(
    "line", [b'{"source":"a","split":"train","sente', b'{"source":"a"}', b"[1, 2]", b'{"source":"\xff\xfe"}', b""]
)
def test_damaged_line_is_named_after_the_lines_before_were_read(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "shard.jsonl"
    write_text(path, DOCUMENTS[:1])
    path.write_bytes(path.read_bytes() + line + b"\n")
    documents = read_text(path)
    assert next(documents) == DOCUMENTS[0]
    with pytest.raises(FolderError, match=r"shard\.jsonl, line 2, is damaged .*prepare --verify"):
        next(documents)


def test_missing_shard_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"gone\.jsonl cannot be read"):
        next(read_text(tmp_path / "gone.jsonl"))


@pytest.mark.parametrize("position", [1, 30, -2])
def test_a_shard_with_another_hash_yields_nothing(tmp_path: Path, position: int) -> None:
    path = tmp_path / "shard.jsonl"
    write_text(path, DOCUMENTS)
    expected = sha256(path)
    assert list(read_text(path, expected)) == DOCUMENTS
    flip_bit(path, position)
    with pytest.raises(FolderError, match=r"shard\.jsonl is damaged or was changed: its sha256 .*prepare --verify"):
        next(read_text(path, expected))


def test_a_shard_without_its_last_lines_yields_nothing(tmp_path: Path) -> None:
    path = tmp_path / "shard.jsonl"
    write_text(path, DOCUMENTS)
    expected = sha256(path)
    write_text(path, DOCUMENTS[:2])
    with pytest.raises(FolderError, match="is damaged or was changed"):
        next(read_text(path, expected))
