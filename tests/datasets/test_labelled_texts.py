"""Tables of texts with labels: the columns by role that a file is read with."""

from __future__ import annotations

from pathlib import Path

from bertworks.datasets.labelled_texts import read_texts, text_columns
from bertworks.text.document import Counts


def test_recognized_columns_are_returned_by_role_without_the_id(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("id\tsentence1\tsentence2\tlabel\n7\ta\tb\tyes\n", encoding="utf-8")
    assert text_columns(path, {}) == {"text": "sentence1", "pair": "sentence2", "label": "label"}


def test_the_header_and_the_flag_for_broken_lines_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("broken\nx\tno\thello\n", encoding="utf-8")
    columns = {"header": "source,label,sms", "broken": "yes"}
    assert text_columns(path, columns) == {"text": "sms", "label": "label", **columns}
    (example,) = read_texts(path, columns, Counts())
    assert (example.texts, example.label) == (("hello",), "no")


def test_a_line_without_the_id_that_others_have_gets_its_number(tmp_path: Path):
    (tmp_path / "t.jsonl").write_text('{"id": "a", "text": "x", "label": "y"}\n{"text": "z", "label": "y"}\n')
    assert [example.id for example in read_texts(tmp_path / "t.jsonl", {}, None)] == ["a", "1"]
