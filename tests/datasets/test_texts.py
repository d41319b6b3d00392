"""Texts of a file: one per line, or a column of a table."""

import gzip
import io
import sys
from pathlib import Path

import pytest

from bertworks.datasets.texts import texts_in
from bertworks.errors import InputError


def test_each_line_is_a_text_whatever_it_contains(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes('text\n\n今天\t好\r\n{"a": 1}\nlast'.encode())
    assert list(texts_in(str(tmp_path / "a.txt"))) == ["text", "", "今天\t好", '{"a": 1}', "last"]


def test_compressed_lines_are_decompressed(tmp_path: Path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"\xef\xbb\xbfone\ntwo\n"))
    assert list(texts_in(str(tmp_path / "a.txt.gz"))) == ["one", "two"]


def test_a_column_is_named_or_recognized(tmp_path: Path):
    (tmp_path / "a.tsv").write_text("sentence\tnote\none\tx\n\ty\n")
    assert list(texts_in(str(tmp_path / "a.tsv"))) == ["one", ""]
    assert list(texts_in(str(tmp_path / "a.tsv"), "note")) == ["x", "y"]
    (tmp_path / "a.jsonl").write_text('{"text": "one", "n": 1}\n{"n": 2, "text": ""}\n')
    assert list(texts_in(str(tmp_path / "a.jsonl"))) == ["one", ""]


def test_standard_input_is_read_as_lines_or_as_a_table(monkeypatch: pytest.MonkeyPatch):
    for column, expected in ((None, ["b,text", "1,one"]), ("text", ["one"])):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"b,text\n1,one\n")))
        assert list(texts_in("-", column)) == expected


@pytest.mark.parametrize(
    ("name", "content", "column", "message"),
    [
        ("missing.txt", None, None, "missing.txt does not exist"),
        ("empty.txt", "", None, "empty.txt is empty"),
        ("zero.txt", "a\0\0\0", None, "zero.txt is binary"),
        ("a.jsonl", '{"text": 5}\n', None, "a.jsonl, line 1: 'text' is a int, not a string"),
        ("a.jsonl", '{"text": "a"}\n{"b": "c"}\n', None, "a.jsonl, line 2: no column 'text'; there are 'b'"),
        ("a.csv", "x,y\n1,2\n", None, "no column looks like the text"),
        ("a.csv", "x,y\n1,2\n", "z", "a.csv, line 2: no column 'z'; there are 'x', 'y'"),
        ("a.tsv", "x\ty\n1\t2\n3\n", "x", "a.tsv, line 3: expected 2 fields"),
    ],
)
def test_invalid_input_raises_an_error(
    tmp_path: Path, name: str, content: str | None, column: str | None, message: str
):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        list(texts_in(str(tmp_path / name), column))


def test_a_folder_raises_an_error(tmp_path: Path):
    with pytest.raises(InputError, match="is a folder; name a file"):
        list(texts_in(str(tmp_path)))
