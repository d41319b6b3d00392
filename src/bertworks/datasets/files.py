"""Labelled files in, Records with named fields out, streamed: TSV, CSV, JSON Lines or plain lines, also compressed."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bertworks.errors import InputError, SettingsError, show_names
from bertworks.reading import parse_json
from bertworks.text.compression import RawStream, compression_of, decompress, open_raw
from bertworks.text.decoding import detect_encoding, non_text_reason
from bertworks.text.document import Counts

# Bounds memory where a file has no line ends, or a quote is never closed.
LONGEST_LINE = 2**26

EXTENSIONS = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json-lines": "jsonl",
}
KINDS = ("tsv", "csv", "jsonl", "text")

# Common column names, normalized. Both columns of a pair must exist.
PAIRS = (
    ("sentence1", "sentence2"),
    ("sentence_1", "sentence_2"),
    ("sentence_a", "sentence_b"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("premise", "hypothesis"),
    ("claim", "evidence"),
    ("query", "passage"),
    ("#1_string", "#2_string"),
    ("句子1", "句子2"),
)
TEXTS = (
    *("sentence", "text", "sms", "review", "comment", "content", "message", "tweet", "body", "utterance", "document"),
    *("文本", "句子", "内容", "评论"),
    *(first for first, _ in PAIRS),
)
LABELS = (
    *("label", "labels", "gold_label", "quality", "score", "is_duplicate", "class", "category", "target", "intent"),
    *("sentiment", "similarity", "rating", "stars", "标签", "类别"),
)
IDS = ("index", "id", "idx", "guid", "uid", "pairid", "pair_id", "qid", "编号")
_COLUMN_NAMES = frozenset((*itertools.chain(*PAIRS), *TEXTS, *LABELS, *IDS))


@dataclass(frozen=True, slots=True)
class Record:
    """One record: its fields by name (strings, except in JSON Lines), and its location: "train.tsv, line 5"."""

    fields: Mapping[str, Any]
    location: str


def read_records(
    path: Path, columns: Sequence[str] | None = None, broken_counts: Counts | None = None, kind: str | None = None
) -> Iterator[Record]:
    """Stream the records of a labelled file; its kind follows from its extension, else from its first line.

    `columns` names the columns of a table without a header. An invalid record raises InputError, naming its line; with
    `broken_counts`, records with a wrong number of fields are skipped instead, and counted there.
    """
    with open_raw(str(path), str(path)) as raw:
        stream = decompress(raw, path.name)
        stream.drop_byte_order_mark()
        if reason := non_text_reason(stream.peek(2**12)):
            raise InputError(f"{path.name} is {reason}")
        yield from read_stream(
            io.BufferedReader(RawStream(stream)), kind or kind_of_name(path.name), path.name, columns, broken_counts
        )


def kind_of_name(name: str) -> str | None:
    """Return the kind of a file by its extension, ignoring .gz or .zst; None if the extension is not known."""
    suffix = compression_of(name)
    return EXTENSIONS.get(Path(name[: len(name) - len(suffix)]).suffix.lower())


def read_stream(
    stream: IO[bytes],
    kind: str | None,
    name: str,
    columns: Sequence[str] | None = None,
    broken_counts: Counts | None = None,
) -> Iterator[Record]:
    """Stream records from open bytes, such as standard input, each as soon as its line is complete.

    `kind` is one of `KINDS`, or None to detect it by the first line; locations begin with `name`.
    """
    lines = _decode_lines(stream, name)
    if (first := next(lines, None)) is None:
        raise InputError(f"{name} is empty; give a file with at least one record")
    lines = itertools.chain([first], lines)
    kind = kind or _detect_kind(first)
    if kind == "jsonl":
        if columns is not None:
            raise SettingsError(f"{name}: JSON Lines have their own column names; omit the header")
        yield from _json_records(lines, name)
        return
    if kind == "text" and columns is None and _normalize_name(first) not in TEXTS:
        columns = ("text",)
    yield from _TableReader(name, kind, broken_counts).records(_rows(lines, kind, name), columns)


def _decode_lines(stream: IO[bytes], name: str) -> Iterator[str]:
    """Yield the lines with their ends, each decoded separately, so that an error names the line."""
    for number in itertools.count(1):
        raw = stream.readline(LONGEST_LINE)
        if not raw:
            return
        if len(raw) == LONGEST_LINE:
            raise InputError(f"{name}, line {number}: longer than {LONGEST_LINE >> 20} MB; is this a table of texts?")
        if number == 1:
            raw = raw.removeprefix(codecs.BOM_UTF8)
        try:
            yield raw.decode()
        except UnicodeDecodeError as error:
            encoding = detect_encoding(raw)
            command = f"iconv -f {encoding} -t utf-8" if encoding != "utf-8" else "iconv"
            raise InputError(
                f"{name}, line {number}: not UTF-8 (byte {raw[error.start]:#04x} at {error.start + 1}); correct the "
                f"line, or convert the file, perhaps with `{command}`"
            ) from error


def _strip_newline(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


def _detect_kind(first_line: str) -> str:
    if re.match(r'\s*\[?\s*\{\s*(?:"|\}|$)', first_line):
        return "jsonl"
    if "\t" in first_line:
        return "tsv"
    # Prose has commas too, so only a header with a common column name makes a file CSV.
    names = next(csv.reader([_strip_newline(first_line)]), [])
    return "csv" if len(names) > 1 and has_common_names(names) else "text"


def has_common_names(names: Iterable[str]) -> bool:
    """Whether one of the names is a common one of a column, as in a header."""
    return any(_normalize_name(name) in _COLUMN_NAMES for name in names)


def _rows(lines: Iterable[str], kind: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each row of a table with the number of its first line."""
    if kind == "csv":
        yield from _csv_rows(lines, name)
        return
    for number, line in enumerate(lines, 1):
        yield number, _strip_newline(line).split("\t") if kind == "tsv" else [_strip_newline(line)]


def _csv_rows(lines: Iterable[str], name: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(LONGEST_LINE)  # the default is 128 KiB
    reader = csv.reader(lines, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            is_unclosed = "end of data" in str(error) or "limit" in str(error)
            reason = "a quote is never closed" if is_unclosed else f"not CSV ({error})"
            raise InputError(f"{name}, line {number}: {reason}; correct the line") from error
        if row is None:
            return
        yield number, row or [""]


@dataclass(frozen=True, slots=True)
class _TableReader:
    """Parses a table: rows in, Records out."""

    name: str
    kind: str
    broken_counts: Counts | None

    def records(self, rows: Iterator[tuple[int, list[str]]], columns: Sequence[str] | None) -> Iterator[Record]:
        names = self._header(rows) if columns is None else list(columns)
        heading = [_normalize_name(name) for name in names] if columns is not None and self.kind != "text" else None
        for number, row in rows:
            if row == [""] and len(names) > 1:
                continue
            is_heading = heading is not None and [_normalize_name(field) for field in row] == heading
            heading = None  # only the first line may repeat the column names
            if is_heading:
                continue
            if len(row) == len(names):
                yield Record(dict(zip(names, row, strict=True)), f"{self.name}, line {number}")
            elif self.broken_counts is None:
                raise InputError(self._field_count_message(number, len(row), names))
            else:
                self.broken_counts["lines skipped: wrong number of fields"] += 1

    def _header(self, rows: Iterator[tuple[int, list[str]]]) -> list[str]:
        number, row = next(((number, row) for number, row in rows if row != [""]), (1, []))
        # The index column of a table written by pandas has no name.
        names = [field.strip() or f"column {column}" for column, field in enumerate(row, 1)]
        if duplicates := {name for name in names if names.count(name) > 1}:
            raise InputError(
                f"{self.name}, line {number}: the header has the column {min(duplicates)!r} twice; rename one, or, if "
                f"this line is not a header, add one above it"
            )
        return names

    def _field_count_message(self, number: int, num_fields: int, names: list[str]) -> str:
        hint = {
            "tsv": "a field must not contain a tab",
            "csv": "a field with a comma needs double quotes",
            "text": "a file of plain lines has one column",
        }[self.kind]
        return (
            f"{self.name}, line {number}: expected {len(names)} fields ({show_names(names)}), got {num_fields}; "
            f"correct or remove the line ({hint})"
        )


def _json_records(lines: Iterable[str], name: str) -> Iterator[Record]:
    for number, line in enumerate(lines, 1):
        if line.isspace():
            continue
        location = f"{name}, line {number}"
        try:
            record = parse_json(line)
        except ValueError as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            raise InputError(f"{location}: not JSON ({reason}); write one object per line") from error
        if not isinstance(record, dict):
            raise InputError(f"{location}: expected an object, got a {type(record).__name__}; write one per line")
        if "\\ud" in line.lower() and _has_lone_surrogate(record):
            raise InputError(f"{location}: the escape \\ud… is a lone surrogate and not a character; correct the line")
        yield Record(record, location)


def _has_lone_surrogate(record: dict[str, Any]) -> bool:
    try:
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _normalize_name(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def recognize_columns(fields: Sequence[str], roles: Mapping[str, str | None], name: str = "the file") -> dict[str, str]:
    """Return the column of each role: "text", "pair" (the second text), "label" and "id".

    `roles` maps a role to the column that the user named, or to None to find it by common names. Text and label are
    required; pair and id are optional. If only the text is named, there is no pair.
    """
    columns: dict[str, str] = {}
    for role, column in roles.items():
        if column is not None and column not in fields:
            raise InputError(f"{name}: no column {column!r}; {_list_columns(fields)}; name another with --{role}")
        if column is not None:
            columns[role] = column
    unassigned = {_normalize_name(field): field for field in fields if field not in columns.values()}
    if "text" in roles and "text" not in columns:
        columns |= _text_columns(unassigned, roles, fields, name)
    if "label" in roles and "label" not in columns:
        columns["label"] = _single_candidate(
            "label", [unassigned[label] for label in LABELS if label in unassigned], fields, name
        )
    if "id" in roles and "id" not in columns and (ids := [unassigned[key] for key in IDS if key in unassigned]):
        columns["id"] = ids[0]
    return columns


def _text_columns(
    unassigned: Mapping[str, str], roles: Mapping[str, str | None], fields: Sequence[str], name: str
) -> dict[str, str]:
    """Return the text, or both texts of a pair, among the columns that are not named."""
    second = roles.get("pair")
    if second is not None:
        firsts = [unassigned[a] for a, b in PAIRS if b == _normalize_name(second) and a in unassigned]
        return {"text": firsts[0] if firsts else _single_candidate("text", _singles(unassigned, ()), fields, name)}
    pairs = [pair for pair in PAIRS if pair[0] in unassigned and pair[1] in unassigned]
    singles = _singles(unassigned, {text for pair in pairs for text in pair})
    if len(pairs) == 1 and not singles and "pair" in roles:
        first, second = pairs[0]
        return {"text": unassigned[first], "pair": unassigned[second]}
    return {
        "text": _single_candidate(
            "text", [*(unassigned[text] for pair in pairs for text in pair), *singles], fields, name
        )
    }


def _singles(unassigned: Mapping[str, str], pair_columns: Iterable[str]) -> list[str]:
    return [unassigned[text] for text in TEXTS if text in unassigned and text not in pair_columns]


def _single_candidate(role: str, candidates: list[str], fields: Sequence[str], name: str) -> str:
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise InputError(
            f"{name}: {' and '.join(map(repr, candidates))} could each be the {role}; name the right one with --{role}"
            f"{' (and --pair)' if role == 'text' else ''}; {_list_columns(fields)}"
        )
    raise InputError(
        f"{name}: no column looks like the {role}; {_list_columns(fields)}; name it with --{role}, or add a header "
        f"line if the file has none"
    )


def _list_columns(fields: Sequence[str]) -> str:
    # Shortened: the "names" of a file without a header are whole texts, or a thousand numbers.
    shortened = (field if len(field) <= 40 else field[:39] + "…" for field in fields)
    return f"the columns are {show_names(shortened)}"
