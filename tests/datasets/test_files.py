"""Labelled files written by hand: what each kind means, how columns are recognised, and what is refused."""

import gzip
import io
import os
from pathlib import Path

import pytest
import zstandard

from bertworks.datasets import files
from bertworks.datasets.files import Record, read_records, read_stream, recognise
from bertworks.errors import InputError, SettingsError
from bertworks.text.document import Counts

TABLE = "sentence\tlabel\ngood\t1\nbad\t0\n"
RECORDS = [{"sentence": "good", "label": "1"}, {"sentence": "bad", "label": "0"}]
ALL = {"text": None, "pair": None, "label": None, "id": None}


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def fields(path: Path, *arguments: object) -> list[dict[str, object]]:
    return [dict(line.fields) for line in read_records(path, *arguments)]  # type: ignore[arg-type]


def refusal(path: Path, *arguments: object) -> str:
    with pytest.raises(InputError) as caught:
        fields(path, *arguments)
    return str(caught.value)


def test_a_tsv_gives_its_fields_by_name_and_its_place(tmp_path: Path):
    lines = list(read_records(write(tmp_path, "train.tsv", TABLE)))
    assert lines == [Record(RECORDS[0], "train.tsv, line 2"), Record(RECORDS[1], "train.tsv, line 3")]


def test_quotes_in_a_tsv_are_text(tmp_path: Path):
    path = write(tmp_path, "train.tsv", 'text\tlabel\n"a\t1\nsay ""b""\t0\n')
    assert [one["text"] for one in fields(path)] == ['"a', 'say ""b""']


def test_a_csv_field_in_quotes_may_hold_commas_quotes_and_line_ends(tmp_path: Path):
    path = write(tmp_path, "train.csv", 'text,label\n"a, ""b""\nc",1\nd,0\n')
    assert list(read_records(path)) == [
        Record({"text": 'a, "b"\nc', "label": "1"}, "train.csv, line 2"),
        Record({"text": "d", "label": "0"}, "train.csv, line 4"),
    ]


def test_json_lines_keep_their_types_and_empty_lines_are_passed_over(tmp_path: Path):
    path = write(tmp_path, "train.jsonl", '{"text": "a", "label": 1}\n\n{"text": "汉", "label": ["x", "y"]}\n')
    lines = list(read_records(path))
    assert lines[0] == Record({"text": "a", "label": 1}, "train.jsonl, line 1")
    assert lines[1] == Record({"text": "汉", "label": ["x", "y"]}, "train.jsonl, line 3")


@pytest.mark.parametrize("name", ["t.tsv.gz", "t.TSV.GZ", "t.gz"])
def test_gzip_is_unpacked(tmp_path: Path, name: str):
    assert fields(write(tmp_path, name, gzip.compress(TABLE.encode()))) == RECORDS


def test_zstandard_is_unpacked(tmp_path: Path):
    assert fields(write(tmp_path, "t.tsv.zst", zstandard.ZstdCompressor().compress(TABLE.encode()))) == RECORDS


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path):
    assert fields(write(tmp_path, "t.tsv", "\ufeff" + TABLE)) == RECORDS
    assert fields(write(tmp_path, "u.tsv", TABLE.encode("utf-16"))) == RECORDS


@pytest.mark.parametrize("name", ["t.tsv", "t.csv"])
def test_windows_line_ends_are_no_part_of_the_last_field(tmp_path: Path, name: str):
    separator = "\t" if name == "t.tsv" else ","
    assert fields(write(tmp_path, name, TABLE.replace("\n", "\r\n").replace("\t", separator))) == RECORDS


def test_the_last_line_needs_no_end(tmp_path: Path):
    assert fields(write(tmp_path, "t.tsv", TABLE.removesuffix("\n"))) == RECORDS


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
def test_without_an_extension_the_first_line_tells_the_kind(tmp_path: Path, content: str, expected: object):
    assert fields(write(tmp_path, "SMSCollection", content)) == expected


def test_named_columns_make_the_first_line_a_record(tmp_path: Path):
    path = write(tmp_path, "train.tsv", "gj04\t1\t\tGood.\ngj04\t0\t*\tBad the.\n")
    lines = list(read_records(path, ("source", "label", "star", "sentence")))
    assert lines[0] == Record({"source": "gj04", "label": "1", "star": "", "sentence": "Good."}, "train.tsv, line 1")
    assert lines[1].fields["sentence"] == "Bad the."


def test_a_header_that_repeats_the_named_columns_is_no_record(tmp_path: Path):
    path = write(tmp_path, "train.tsv", "Sentence\tLabel\ngood\t1\nsentence\tlabel\n")
    assert fields(path, ("sentence", "label")) == [RECORDS[0], {"sentence": "sentence", "label": "label"}]


def test_a_column_without_a_name_is_called_by_its_place(tmp_path: Path):
    assert fields(write(tmp_path, "t.csv", ",text\n0,a\n")) == [{"column 1": "0", "text": "a"}]


def test_a_field_of_a_hundred_thousand_words_is_read(tmp_path: Path):
    text = "word " * 100_000
    assert fields(write(tmp_path, "t.csv", f'text,label\n"{text}",1\n')) == [{"text": text, "label": "1"}]


@pytest.mark.parametrize("separator", ["\t", ","])
def test_a_line_with_too_few_fields_is_named(tmp_path: Path, separator: str):
    name = "t.tsv" if separator == "\t" else "t.csv"
    content = f"text{separator}label\n" + f"a{separator}1\n" * 3 + "broken\n"
    assert refusal(write(tmp_path, name, content)).startswith(
        f"{name}, line 5: 1 field where 2 are expected (text, label); mend or remove the line"
    )


def test_broken_lines_are_counted_instead_where_that_is_asked(tmp_path: Path):
    broken = Counts()
    path = write(tmp_path, "t.tsv", "text\tlabel\na\t1\nb\nc\t2\t3\nd\t0\n")
    assert [one["text"] for one in fields(path, None, broken)] == ["a", "d"]
    assert broken == {"lines left out: wrong number of fields": 2}


def test_a_line_that_is_not_json_is_named(tmp_path: Path):
    path = write(tmp_path, "t.jsonl", '{"text": "a"}\n' * 4 + '{"text": \n')
    assert refusal(path).startswith("t.jsonl, line 5: not JSON (Expecting value)")
    assert "line 1: a list where an object" in refusal(write(tmp_path, "u.jsonl", '[{"text": "a"}]\n'))


def test_half_of_a_surrogate_pair_is_refused_and_a_whole_one_is_read(tmp_path: Path):
    assert fields(write(tmp_path, "t.jsonl", '{"text": "\\ud83d\\ude00"}\n')) == [{"text": "😀"}]
    assert "line 1" in refusal(write(tmp_path, "u.jsonl", '{"text": "\\ud83d"}\n'))


def test_a_line_that_is_not_utf8_is_named_with_the_likely_encoding(tmp_path: Path):
    content = TABLE.encode() + "很好的酒店\t1\n".encode("gb18030")
    message = refusal(write(tmp_path, "t.tsv", content))
    assert message.startswith("t.tsv, line 4: not UTF-8 (byte 0xba at 1)")
    assert "iconv -f gb18030 -t utf-8" in message


def test_a_quote_that_is_never_closed_is_named_where_it_opens(tmp_path: Path):
    path = write(tmp_path, "t.csv", 'text,label\na,1\n"b,0\nc,1\n')
    assert refusal(path) == "t.csv, line 3: a quote is opened and never closed; mend the line"


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "LONGEST_LINE", 2**20)
    path = write(tmp_path, "t.tsv", TABLE + "x" * 2**20)
    assert refusal(path).startswith("t.tsv, line 4: longer than 1 MB")


def test_a_header_with_one_name_twice_is_refused(tmp_path: Path):
    assert "'text' twice" in refusal(write(tmp_path, "t.tsv", "text\ttext\na\tb\n"))


def test_missing_empty_and_packed_files_are_refused(tmp_path: Path):
    assert "No such file" in refusal(tmp_path / "none.tsv")
    assert refusal(write(tmp_path, "empty.tsv", "")).startswith("empty.tsv is empty")
    assert "gzip data" in refusal(write(tmp_path, "t.tsv", gzip.compress(TABLE.encode())))
    assert "truncated" in refusal(write(tmp_path, "t.tsv.gz", gzip.compress(TABLE.encode() * 9)[:-9]))


def test_json_lines_with_named_columns_are_refused(tmp_path: Path):
    with pytest.raises(SettingsError, match="name their own columns"):
        fields(write(tmp_path, "t.jsonl", "{}\n"), ("text",))


def test_a_stream_is_read_by_kind_or_by_its_first_line():
    def from_bytes(kind: str | None) -> list[Record]:
        return list(read_stream(io.BytesIO(b"\xef\xbb\xbf" + TABLE.encode()), kind, "standard input"))

    assert [line.fields for line in from_bytes(None)] == RECORDS
    assert from_bytes("tsv")[1].location == "standard input, line 3"
    assert [line.fields for line in from_bytes("text")][1] == {"text": "good\t1"}


def test_a_stream_hands_on_each_line_before_the_next_has_come():
    read, written = os.pipe()
    with os.fdopen(read, "rb") as stream, os.fdopen(written, "wb", buffering=0) as writer:
        writer.write(b"text\tlabel\na\t1\n")
        lines = read_stream(stream, None, "standard input")
        assert next(lines).fields == {"text": "a", "label": "1"}
        writer.write(b"b\t0\n")
        assert next(lines).fields == {"text": "b", "label": "0"}


def test_reading_is_lazy(tmp_path: Path):
    lines = read_records(write(tmp_path, "t.tsv", TABLE + "broken\n"))
    assert [next(lines).fields, next(lines).fields] == RECORDS
    with pytest.raises(InputError, match="line 4"):
        next(lines)


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
def test_usual_columns_are_recognised(columns: str, expected: dict[str, str]):
    assert recognise(columns.split(), ALL) == expected


def test_columns_with_blanks_and_capitals_are_recognised():
    assert recognise(["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"], ALL) == {
        "text": "#1 String",
        "pair": "#2 String",
        "label": "Quality",
    }


def test_a_named_column_is_taken_before_any_usual_one():
    columns = ["sentence", "comment", "toxic"]
    assert recognise(columns, {"text": "comment", "pair": None, "label": "toxic"}) == {
        "text": "comment",
        "label": "toxic",
    }
    assert recognise(["premise", "hypothesis"], {"text": "hypothesis", "pair": None}) == {"text": "hypothesis"}
    assert recognise(["premise", "hypothesis", "text"], {"text": None, "pair": "hypothesis"}) == {
        "text": "premise",
        "pair": "hypothesis",
    }


@pytest.mark.parametrize(
    ("columns", "wanted", "words"),
    [
        ("a label", ALL, ["no column looks like the text", "'a', 'label'", "--text"]),
        ("text b", ALL, ["no column looks like the label", "'text', 'b'", "--label"]),
        ("text review label", ALL, ["'text' and 'review' may each be the text", "--text"]),
        ("text label score", ALL, ["'label' and 'score' may each be the label", "--label"]),
        ("premise hypothesis", {"text": None}, ["'premise' and 'hypothesis' may each be the text"]),
        ("text label", {"text": "body"}, ["no column 'body'", "'text', 'label'", "--text"]),
        ("text label", {"text": None, "pair": "other"}, ["no column 'other'", "--pair"]),
    ],
)
def test_a_missing_or_ambiguous_column_is_refused(columns: str, wanted: dict[str, str | None], words: list[str]):
    with pytest.raises(InputError) as caught:
        recognise(columns.split(), wanted, "train.tsv")
    assert str(caught.value).startswith("train.tsv: ")
    for word in words:
        assert word in str(caught.value)


def test_no_label_is_looked_for_where_none_is_wanted():
    assert recognise(["index", "sentence"], {"text": None, "id": None}) == {"text": "sentence", "id": "index"}
