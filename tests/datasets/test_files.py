"""Labelled files: the formats, the recognition of columns, and errors."""

import gzip
import io
import os
from pathlib import Path

import pytest
import zstandard

from bertworks.datasets import files
from bertworks.datasets.files import Record, read_records, read_stream, recognize_columns
from bertworks.errors import InputError, SettingsError
from bertworks.text.document import Counts

TABLE = "sentence\tlabel\ngood\t1\nbad\t0\n"
RECORDS = [{"sentence": "good", "label": "1"}, {"sentence": "bad", "label": "0"}]
ALL_ROLES = {"text": None, "pair": None, "label": None, "id": None}


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read_fields(path: Path, *arguments: object) -> list[dict[str, object]]:
    return [dict(record.fields) for record in read_records(path, *arguments)]  # type: ignore[arg-type]


def error_message(path: Path, *arguments: object) -> str:
    with pytest.raises(InputError) as caught:
        read_fields(path, *arguments)
    return str(caught.value)


def test_a_tsv_has_fields_by_name_and_locations(tmp_path: Path):
    records = list(read_records(write(tmp_path, "train.tsv", TABLE)))
    assert records == [Record(RECORDS[0], "train.tsv, line 2"), Record(RECORDS[1], "train.tsv, line 3")]


def test_quotes_in_a_tsv_are_literal(tmp_path: Path):
    path = write(tmp_path, "train.tsv", 'text\tlabel\n"a\t1\nsay ""b""\t0\n')
    assert [one["text"] for one in read_fields(path)] == ['"a', 'say ""b""']


def test_a_quoted_csv_field_may_contain_commas_quotes_and_newlines(tmp_path: Path):
    path = write(tmp_path, "train.csv", 'text,label\n"a, ""b""\nc",1\nd,0\n')
    assert list(read_records(path)) == [
        Record({"text": 'a, "b"\nc', "label": "1"}, "train.csv, line 2"),
        Record({"text": "d", "label": "0"}, "train.csv, line 4"),
    ]


def test_json_lines_keep_types_and_skip_empty_lines(tmp_path: Path):
    path = write(tmp_path, "train.jsonl", '{"text": "a", "label": 1}\n\n{"text": "汉", "label": ["x", "y"]}\n')
    records = list(read_records(path))
    assert records[0] == Record({"text": "a", "label": 1}, "train.jsonl, line 1")
    assert records[1] == Record({"text": "汉", "label": ["x", "y"]}, "train.jsonl, line 3")


@pytest.mark.parametrize("name", ["t.tsv.gz", "t.TSV.GZ", "t.gz"])
def test_gzip_is_decompressed(tmp_path: Path, name: str):
    assert read_fields(write(tmp_path, name, gzip.compress(TABLE.encode()))) == RECORDS


def test_zstandard_is_decompressed(tmp_path: Path):
    assert read_fields(write(tmp_path, "t.tsv.zst", zstandard.ZstdCompressor().compress(TABLE.encode()))) == RECORDS


def test_a_byte_order_mark_is_removed(tmp_path: Path):
    assert read_fields(write(tmp_path, "t.tsv", "\ufeff" + TABLE)) == RECORDS
    assert read_fields(write(tmp_path, "u.tsv", TABLE.encode("utf-16"))) == RECORDS


@pytest.mark.parametrize("name", ["t.tsv", "t.csv"])
def test_windows_line_ends_are_removed(tmp_path: Path, name: str):
    separator = "\t" if name == "t.tsv" else ","
    assert read_fields(write(tmp_path, name, TABLE.replace("\n", "\r\n").replace("\t", separator))) == RECORDS


def test_the_last_line_needs_no_newline(tmp_path: Path):
    assert read_fields(write(tmp_path, "t.tsv", TABLE.removesuffix("\n"))) == RECORDS


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (TABLE, RECORDS),
        ("sentence,label\ngood,1\nbad,0\n", RECORDS),
        ('{"sentence": "good", "label": "1"}\n{"sentence": "bad", "label": "0"}\n', RECORDS),
        ("Well, yes\n\n1, 2, 3\n", [{"text": "Well, yes"}, {"text": ""}, {"text": "1, 2, 3"}]),
        ("Text\nWell, yes\n", [{"Text": "Well, yes"}]),
    ],
)
def test_without_an_extension_the_kind_follows_from_the_first_line(tmp_path: Path, content: str, expected: object):
    assert read_fields(write(tmp_path, "SMSCollection", content)) == expected


def test_with_column_names_the_first_line_is_a_record(tmp_path: Path):
    path = write(tmp_path, "train.tsv", "gj04\t1\t\tGood.\ngj04\t0\t*\tBad the.\n")
    records = list(read_records(path, ("source", "label", "star", "sentence")))
    assert records[0] == Record({"source": "gj04", "label": "1", "star": "", "sentence": "Good."}, "train.tsv, line 1")
    assert records[1].fields["sentence"] == "Bad the."


def test_a_header_equal_to_the_column_names_is_skipped(tmp_path: Path):
    path = write(tmp_path, "train.tsv", "Sentence\tLabel\ngood\t1\nsentence\tlabel\n")
    assert read_fields(path, ("sentence", "label")) == [RECORDS[0], {"sentence": "sentence", "label": "label"}]


def test_an_unnamed_column_gets_its_number(tmp_path: Path):
    assert read_fields(write(tmp_path, "t.csv", ",text\n0,a\n")) == [{"column 1": "0", "text": "a"}]


def test_a_field_of_a_hundred_thousand_words_is_read(tmp_path: Path):
    text = "word " * 100_000
    assert read_fields(write(tmp_path, "t.csv", f'text,label\n"{text}",1\n')) == [{"text": text, "label": "1"}]


@pytest.mark.parametrize("separator", ["\t", ","])
def test_a_line_with_too_few_fields_raises_an_error(tmp_path: Path, separator: str):
    name = "t.tsv" if separator == "\t" else "t.csv"
    content = f"text{separator}label\n" + f"a{separator}1\n" * 3 + "broken\n"
    assert error_message(write(tmp_path, name, content)).startswith(
        f"{name}, line 5: expected 2 fields ('text', 'label'), got 1; correct or remove the line"
    )


def test_with_counts_broken_lines_are_skipped_and_counted(tmp_path: Path):
    counts = Counts()
    path = write(tmp_path, "t.tsv", "text\tlabel\na\t1\nb\nc\t2\t3\nd\t0\n")
    assert [one["text"] for one in read_fields(path, None, counts)] == ["a", "d"]
    assert counts == {"lines skipped: wrong number of fields": 2}


def test_a_line_that_is_not_json_raises_an_error(tmp_path: Path):
    path = write(tmp_path, "t.jsonl", '{"text": "a"}\n' * 4 + '{"text": \n')
    assert error_message(path).startswith("t.jsonl, line 5: not JSON (Expecting value)")
    assert "line 1: expected an object, got a list" in error_message(write(tmp_path, "u.jsonl", '[{"text": "a"}]\n'))


def test_a_lone_surrogate_raises_an_error_and_a_pair_is_read(tmp_path: Path):
    assert read_fields(write(tmp_path, "t.jsonl", '{"text": "\\ud83d\\ude00"}\n')) == [{"text": "😀"}]
    assert "line 1" in error_message(write(tmp_path, "u.jsonl", '{"text": "\\ud83d"}\n'))


def test_a_line_that_is_not_utf8_raises_an_error_with_the_likely_encoding(tmp_path: Path):
    content = TABLE.encode() + "很好的酒店\t1\n".encode("gb18030")
    message = error_message(write(tmp_path, "t.tsv", content))
    assert message.startswith("t.tsv, line 4: not UTF-8 (byte 0xba at 1)")
    assert "iconv -f gb18030 -t utf-8" in message


def test_an_unclosed_quote_raises_an_error_with_its_line(tmp_path: Path):
    path = write(tmp_path, "t.csv", 'text,label\na,1\n"b,0\nc,1\n')
    assert error_message(path) == "t.csv, line 3: a quote is never closed; correct the line"


def test_an_endless_line_raises_an_error_before_it_fills_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "LONGEST_LINE", 2**20)
    path = write(tmp_path, "t.tsv", TABLE + "x" * 2**20)
    assert error_message(path).startswith("t.tsv, line 4: longer than 1 MB")


def test_a_duplicate_column_raises_an_error(tmp_path: Path):
    assert "'text' twice" in error_message(write(tmp_path, "t.tsv", "text\ttext\na\tb\n"))


def test_missing_empty_and_compressed_files_raise_an_error(tmp_path: Path):
    assert "none.tsv cannot be read: there is no such file" in error_message(tmp_path / "none.tsv")
    assert error_message(write(tmp_path, "empty.tsv", "")).startswith("empty.tsv is empty")
    assert "gzip data" in error_message(write(tmp_path, "t.tsv", gzip.compress(TABLE.encode())))
    assert "truncated" in error_message(write(tmp_path, "t.tsv.gz", gzip.compress(TABLE.encode() * 9)[:-9]))


def test_json_lines_with_column_names_raise_an_error(tmp_path: Path):
    with pytest.raises(SettingsError, match="have their own column names"):
        read_fields(write(tmp_path, "t.jsonl", "{}\n"), ("text",))


def test_a_stream_is_read_by_kind_or_by_its_first_line():
    def from_bytes(kind: str | None) -> list[Record]:
        return list(read_stream(io.BytesIO(b"\xef\xbb\xbf" + TABLE.encode()), kind, "standard input"))

    assert [record.fields for record in from_bytes(None)] == RECORDS
    assert from_bytes("tsv")[1].location == "standard input, line 3"
    assert [record.fields for record in from_bytes("text")][1] == {"text": "good\t1"}


def test_a_stream_yields_each_record_before_the_next_line():
    read, written = os.pipe()
    with os.fdopen(read, "rb") as stream, os.fdopen(written, "wb", buffering=0) as writer:
        writer.write(b"text\tlabel\na\t1\n")
        records = read_stream(stream, None, "standard input")
        assert next(records).fields == {"text": "a", "label": "1"}
        writer.write(b"b\t0\n")
        assert next(records).fields == {"text": "b", "label": "0"}


def test_reading_is_lazy(tmp_path: Path):
    records = read_records(write(tmp_path, "t.tsv", TABLE + "broken\n"))
    assert [next(records).fields, next(records).fields] == RECORDS
    with pytest.raises(InputError, match="line 4"):
        next(records)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("sentence label", {"text": "sentence", "label": "label"}),
        ("Label SMS", {"text": "SMS", "label": "Label"}),
        ("label text_a", {"text": "text_a", "label": "label"}),
        (
            "index sentence1 sentence2 score",
            {"text": "sentence1", "pair": "sentence2", "label": "score", "id": "index"},
        ),
        ("index question sentence label", {"text": "question", "pair": "sentence", "label": "label", "id": "index"}),
        ("premise hypothesis gold_label", {"text": "premise", "pair": "hypothesis", "label": "gold_label"}),
        ("claim evidence label", {"text": "claim", "pair": "evidence", "label": "label"}),
        ("claim label", {"text": "claim", "label": "label"}),
        (
            "id qid1 qid2 question1 question2 is_duplicate",
            {"text": "question1", "pair": "question2", "label": "is_duplicate", "id": "id"},
        ),
        (
            "index promptID pairID genre sentence1_parse sentence2_parse sentence1 sentence2 label1 gold_label",
            {"text": "sentence1", "pair": "sentence2", "label": "gold_label", "id": "index"},
        ),
        ("文本 标签", {"text": "文本", "label": "标签"}),
    ],
)
def test_common_columns_are_recognized(columns: str, expected: dict[str, str]):
    assert recognize_columns(columns.split(), ALL_ROLES) == expected


def test_columns_with_spaces_and_capitals_are_recognized():
    assert recognize_columns(["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"], ALL_ROLES) == {
        "text": "#1 String",
        "pair": "#2 String",
        "label": "Quality",
    }


def test_a_named_column_takes_precedence():
    columns = ["sentence", "comment", "toxic"]
    assert recognize_columns(columns, {"text": "comment", "pair": None, "label": "toxic"}) == {
        "text": "comment",
        "label": "toxic",
    }
    assert recognize_columns(["premise", "hypothesis"], {"text": "hypothesis", "pair": None}) == {"text": "hypothesis"}
    assert recognize_columns(["premise", "hypothesis", "text"], {"text": None, "pair": "hypothesis"}) == {
        "text": "premise",
        "pair": "hypothesis",
    }


@pytest.mark.parametrize(
    ("columns", "roles", "parts"),
    [
        ("a label", ALL_ROLES, ["no column looks like the text", "'a', 'label'", "--text"]),
        ("text b", ALL_ROLES, ["no column looks like the label", "'text', 'b'", "--label"]),
        ("text review label", ALL_ROLES, ["'text' and 'review' could each be the text", "--text"]),
        ("text label score", ALL_ROLES, ["'label' and 'score' could each be the label", "--label"]),
        ("premise hypothesis", {"text": None}, ["'premise' and 'hypothesis' could each be the text"]),
        ("text label", {"text": "body"}, ["no column 'body'", "'text', 'label'", "--text"]),
        ("text label", {"text": None, "pair": "other"}, ["no column 'other'", "--pair"]),
    ],
)
def test_a_missing_or_ambiguous_column_raises_an_error(columns: str, roles: dict[str, str | None], parts: list[str]):
    with pytest.raises(InputError) as caught:
        recognize_columns(columns.split(), roles, "train.tsv")
    assert str(caught.value).startswith("train.tsv: ")
    for part in parts:
        assert part in str(caught.value)


def test_roles_that_are_not_requested_are_not_returned():
    assert recognize_columns(["index", "sentence"], {"text": None, "id": None}) == {"text": "sentence", "id": "index"}


def test_a_missing_column_lists_at_most_twenty_names():
    columns = [f"column {number}" for number in range(1, 501)]
    with pytest.raises(InputError) as caught:
        recognize_columns(columns, {"text": None}, "train.tsv")
    assert "'column 19', 'column 20' and 480 more; name it with --text" in str(caught.value)
    assert "column 21" not in str(caught.value)


def test_a_folder_in_place_of_a_file_is_unreadable_and_not_damaged(tmp_path: Path):
    with pytest.raises(InputError, match="cannot be read: it is a folder; give a file"):
        list(read_records(tmp_path))
