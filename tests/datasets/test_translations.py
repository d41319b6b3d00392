"""Texts beside their translations: tables with and without a header, two files, and what is wrong with them."""

import gzip
from pathlib import Path

import pytest

from bertworks.datasets.files import Record
from bertworks.datasets.translations import EMPTY_PAIRS, read_pairs, target_file, unlabelled_texts
from bertworks.errors import InputError
from bertworks.text.document import Counts


def pairs(
    path: Path, columns: dict[str, str] | None = None, counts: Counts | None = None
) -> list[tuple[str, str | None]]:
    return [(case.texts[0], case.label) for case in read_pairs(path, columns or {}, counts)]


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_table_of_two_columns_needs_no_header(tmp_path: Path):
    path = written(tmp_path / "train.tsv", "学而时习之\t学习并且时常温习\n不亦说乎\t不也高兴吗\n")
    assert pairs(path) == [("学而时习之", "学习并且时常温习"), ("不亦说乎", "不也高兴吗")]
    assert next(read_pairs(path, {}, None)).location == "train.tsv, line 1"


def test_a_header_with_names_that_are_known_is_one(tmp_path: Path):
    path = written(tmp_path / "train.tsv", "id\tTarget\tSource\n1\thouse\tHaus\n")
    assert pairs(path) == [("Haus", "house")]
    lines = written(tmp_path / "train.jsonl", '{"src": "Haus", "tgt": "house"}\n')
    assert pairs(lines) == [("Haus", "house")]
    named = written(tmp_path / "own.tsv", "de\ten\tx\nHaus\thouse\t1\n")
    assert pairs(named, {"text": "de", "label": "en"}) == [("Haus", "house")]
    with pytest.raises(InputError, match=r"own\.tsv: no column looks like the text; its columns are 'de', 'en', 'x'"):
        pairs(named)


def test_a_pair_of_which_one_side_is_empty_is_left_out_and_counted(tmp_path: Path):
    path, counts = written(tmp_path / "train.tsv", "a b\tc\n \tx\ny\t\n d \t e \n"), Counts()
    assert pairs(path, counts=counts) == [("a b", "c"), ("d", "e")]
    assert counts[EMPTY_PAIRS] == 2


def test_two_files_go_together_line_by_line(tmp_path: Path):
    written(tmp_path / "train.de", "Haus\n\nHund\n")
    written(tmp_path / "train.en", "house\n\ndog\n")
    counts = Counts()
    assert pairs(tmp_path / "train.de", {"targets": "en"}, counts) == [("Haus", "house"), ("Hund", "dog")]
    assert counts[EMPTY_PAIRS] == 1


def test_packed_files_go_together_as_well(tmp_path: Path):
    for ending, text in (("de", "Haus\n"), ("en", "house\n")):
        (tmp_path / f"train.{ending}.gz").write_bytes(gzip.compress(text.encode()))
    path = tmp_path / "train.de.gz"
    assert target_file(path, {"targets": ".en"}) == tmp_path / "train.en.gz"
    assert pairs(path, {"targets": "en"}) == [("Haus", "house")]


def test_files_of_different_lengths_are_refused(tmp_path: Path):
    written(tmp_path / "train.de", "Haus\nHund\n")
    written(tmp_path / "train.en", "house\n")
    with pytest.raises(InputError, match=r"train\.en ends after 1 lines, but train\.de has more"):
        pairs(tmp_path / "train.de", {"targets": "en"})


def test_what_cannot_be_the_other_file_is_refused(tmp_path: Path):
    path = written(tmp_path / "train.de", "Haus\n")
    with pytest.raises(InputError, match=r"there is no .*train\.fr with the translations of train\.de"):
        pairs(path, {"targets": "fr"})
    with pytest.raises(InputError, match="its own translations"):
        pairs(path, {"targets": "de"})
    with pytest.raises(InputError, match=r"holds plain lines; write source, tab and target"):
        pairs(path)


def test_texts_alone_are_all_there_empty_ones_too():
    lines = [Record({"text": one}, f"line {number}") for number, one in enumerate(["Haus", "", " Hund "])]
    assert [case.texts for case in unlabelled_texts(lines, {})] == [("Haus",), ("",), ("Hund",)]
    with pytest.raises(InputError, match="'text' holds a int, not text"):
        list(unlabelled_texts([Record({"text": 3}, "line 1")], {}))
