"""Parallel texts: tables with and without a header, two files, and errors."""

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
    return [(example.texts[0], example.label) for example in read_pairs(path, columns or {}, counts)]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_table_of_two_columns_needs_no_header(tmp_path: Path):
    path = write(tmp_path / "train.tsv", "学而时习之\t学习并且时常温习\n不亦说乎\t不也高兴吗\n")
    assert pairs(path) == [("学而时习之", "学习并且时常温习"), ("不亦说乎", "不也高兴吗")]
    assert next(read_pairs(path, {}, None)).location == "train.tsv, line 1"


def test_a_header_with_common_names_is_recognized(tmp_path: Path):
    path = write(tmp_path / "train.tsv", "id\tTarget\tSource\n1\thouse\tHaus\n")
    assert pairs(path) == [("Haus", "house")]
    records = write(tmp_path / "train.jsonl", '{"src": "Haus", "tgt": "house"}\n')
    assert pairs(records) == [("Haus", "house")]
    named = write(tmp_path / "own.tsv", "de\ten\tx\nHaus\thouse\t1\n")
    assert pairs(named, {"text": "de", "label": "en"}) == [("Haus", "house")]
    with pytest.raises(InputError, match=r"own\.tsv: no column looks like the text; the columns are 'de', 'en', 'x'"):
        pairs(named)


def test_a_pair_with_an_empty_side_is_skipped_and_counted(tmp_path: Path):
    path, counts = write(tmp_path / "train.tsv", "a b\tc\n \tx\ny\t\n d \t e \n"), Counts()
    assert pairs(path, counts=counts) == [("a b", "c"), ("d", "e")]
    assert counts[EMPTY_PAIRS] == 2


def test_two_files_are_read_line_by_line(tmp_path: Path):
    write(tmp_path / "train.de", "Haus\n\nHund\n")
    write(tmp_path / "train.en", "house\n\ndog\n")
    counts = Counts()
    assert pairs(tmp_path / "train.de", {"targets": "en"}, counts) == [("Haus", "house"), ("Hund", "dog")]
    assert counts[EMPTY_PAIRS] == 1


def test_two_compressed_files_are_read(tmp_path: Path):
    for extension, text in (("de", "Haus\n"), ("en", "house\n")):
        (tmp_path / f"train.{extension}.gz").write_bytes(gzip.compress(text.encode()))
    path = tmp_path / "train.de.gz"
    assert target_file(path, {"targets": ".en"}) == tmp_path / "train.en.gz"
    assert pairs(path, {"targets": "en"}) == [("Haus", "house")]


def test_files_of_different_lengths_raise_an_error(tmp_path: Path):
    write(tmp_path / "train.de", "Haus\nHund\n")
    write(tmp_path / "train.en", "house\n")
    with pytest.raises(InputError, match=r"train\.en ends after 1 lines, but train\.de has more"):
        pairs(tmp_path / "train.de", {"targets": "en"})


def test_an_invalid_target_file_raises_an_error(tmp_path: Path):
    path = write(tmp_path / "train.de", "Haus\n")
    with pytest.raises(InputError, match=r"there is no .*train\.fr with the translations of train\.de"):
        pairs(path, {"targets": "fr"})
    with pytest.raises(InputError, match="its own translations"):
        pairs(path, {"targets": "de"})
    with pytest.raises(InputError, match=r"has plain lines; write source, tab and target"):
        pairs(path)


def test_unlabelled_texts_include_empty_ones():
    records = [Record({"text": one}, f"line {index}") for index, one in enumerate(["Haus", "", " Hund "])]
    assert [example.texts for example in unlabelled_texts(records, {})] == [("Haus",), ("",), ("Hund",)]
    with pytest.raises(InputError, match="'text' is a int, not a string"):
        list(unlabelled_texts([Record({"text": 3}, "line 1")], {}))
