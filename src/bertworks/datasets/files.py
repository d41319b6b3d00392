"""Labelled files in, Lines with named fields out: TSV, CSV, JSON Lines or one text a line, packed or not, streamed."""

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

from bertworks.errors import InputError, SettingsError
from bertworks.text.compression import RawStream, compression_of, decompress, open_raw
from bertworks.text.decoding import detect_encoding, non_text_reason
from bertworks.text.document import Counts

# A table whose line ends are lost, or whose quote is never closed, must not fill the memory.
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

# Usual names of columns, as `_plain` writes them. Of a pair both must be there.
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
    """One record: its fields by name (text, except in JSON Lines), and where it stands: "train.tsv, line 5"."""

    fields: Mapping[str, Any]
    location: str


def read_records(
    path: Path, columns: Sequence[str] | None = None, broken_counts: Counts | None = None, kind: str | None = None
) -> Iterator[Record]:
    """Read a labelled file record by record; unless given, its kind is told by its extension, else its first line.

    `columns` names the columns of a table without a header. A record that cannot be read is refused, naming its line;
    if `broken` is given, records with a wrong number of fields are left out instead, and counted there.
    """
    with open_raw(str(path), str(path)) as raw:
        stream = decompress(raw, path.name)
        stream.drop_byte_order_mark()
        if what := non_text_reason(stream.peek(2**12)):
            raise InputError(f"{path.name} is {what}")
        yield from read_stream(
            io.BufferedReader(RawStream(stream)), kind or kind_of_name(path.name), path.name, columns, broken_counts
        )


def kind_of_name(name: str) -> str | None:
    """The kind of a file by its extension, behind which .gz or .zst may stand; None where that says nothing."""
    suffix = compression_of(name)
    return EXTENSIONS.get(Path(name[: len(name) - len(suffix)]).suffix.lower())


def read_stream(
    stream: IO[bytes],
    kind: str | None,
    name: str,
    columns: Sequence[str] | None = None,
    broken_counts: Counts | None = None,
) -> Iterator[Record]:
    """Read records from open bytes, such as standard input, each as soon as its line is there.

    `kind` is one of `KINDS`, or None to look at the first line; `name` stands in the places.
    """
    lines = _decode_lines(stream, name)
    if (first := next(lines, None)) is None:
        raise InputError(f"{name} is empty; give a file with at least one record")
    lines = itertools.chain([first], lines)
    kind = kind or _detect_kind(first)
    if kind == "jsonl":
        if columns is not None:
            raise SettingsError(f"{name}: JSON Lines name their own columns; leave the names of the columns out")
        yield from _json_records(lines, name)
        return
    if kind == "text" and columns is None and _normalize_name(first) not in TEXTS:
        columns = ("text",)
    yield from _TableReader(name, kind, broken_counts).records(_rows(lines, kind, name), columns)


def _decode_lines(stream: IO[bytes], name: str) -> Iterator[str]:
    """The lines with their ends. Each is decoded alone, so that a bad one can be named."""
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
            likely = detect_encoding(raw)
            way_out = f"iconv -f {likely} -t utf-8" if likely != "utf-8" else "iconv"
            raise InputError(
                f"{name}, line {number}: not UTF-8 (byte {raw[error.start]:#04x} at {error.start + 1}); mend the line, "
                f"or convert the file, perhaps with `{way_out}`"
            ) from error


def _strip_newline(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


def _detect_kind(first_line: str) -> str:
    if re.match(r'\s*\[?\s*\{\s*(?:"|\}|$)', first_line):
        return "jsonl"
    if "\t" in first_line:
        return "tsv"
    # Prose has commas too, so only a header of known words makes a file CSV.
    names = next(csv.reader([_strip_newline(first_line)]), [])
    return "csv" if len(names) > 1 and any(_normalize_name(name) in _COLUMN_NAMES for name in names) else "text"


def _rows(lines: Iterable[str], kind: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """Each row of a table with the number of its first line."""
    if kind == "csv":
        yield from _csv_rows(lines, name)
        return
    for number, line in enumerate(lines, 1):
        yield number, _strip_newline(line).split("\t") if kind == "tsv" else [_strip_newline(line)]


def _csv_rows(lines: Iterable[str], name: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(LONGEST_LINE)  # the module refuses fields over 128 KiB unless told
    reader = csv.reader(lines, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            endless = "end of data" in str(error) or "limit" in str(error)
            reason = "a quote is opened and never closed" if endless else f"not CSV ({error})"
            raise InputError(f"{name}, line {number}: {reason}; mend the line") from error
        if row is None:
            return
        yield number, row or [""]


@dataclass(frozen=True, slots=True)
class _TableReader:
    """A table on its way: rows in, Lines out."""

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
            heading = None  # only the first line may repeat the given names
            if is_heading:
                continue
            if len(row) == len(names):
                yield Record(dict(zip(names, row, strict=True)), f"{self.name}, line {number}")
            elif self.broken_counts is None:
                raise InputError(self._field_count_message(number, len(row), names))
            else:
                self.broken_counts["lines left out: wrong number of fields"] += 1

    def _header(self, rows: Iterator[tuple[int, list[str]]]) -> list[str]:
        number, row = next(((number, row) for number, row in rows if row != [""]), (1, []))
        # A table written with its row numbers has no name over them.
        names = [field.strip() or f"column {place}" for place, field in enumerate(row, 1)]
        if twice := {name for name in names if names.count(name) > 1}:
            raise InputError(
                f"{self.name}, line {number}: the header has the column {min(twice)!r} twice; rename one, or, if this "
                f"line is no header, add one above it"
            )
        return names

    def _field_count_message(self, number: int, num_fields: int, names: list[str]) -> str:
        hint = {
            "tsv": "a text must hold no tab",
            "csv": "a text with a comma must stand in double quotes",
            "text": "a file of plain lines has one column",
        }[self.kind]
        return (
            f"{self.name}, line {number}: {num_fields} {'field' if num_fields == 1 else 'fields'} where {len(names)} "
            f"are expected ({', '.join(names)}); mend or remove the line ({hint})"
        )


def _json_records(lines: Iterable[str], name: str) -> Iterator[Record]:
    for number, line in enumerate(lines, 1):
        if line.isspace():
            continue
        place = f"{name}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            what = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            raise InputError(f"{place}: not JSON ({what}); write one object a line, and mend this one") from error
        if not isinstance(record, dict):
            raise InputError(f"{place}: a {type(record).__name__} where an object was expected; write one a line")
        if "\\ud" in line.lower() and _has_lone_surrogate(record):
            raise InputError(f"{place}: an escape \\ud… is half of a surrogate pair and no character; mend the line")
        yield Record(record, place)


def _has_lone_surrogate(record: dict[str, Any]) -> bool:
    try:
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _normalize_name(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def recognise(fields: Sequence[str], roles: Mapping[str, str | None], name: str = "the file") -> dict[str, str]:
    """Return the column of each wanted role: "text", "pair" (the second text), "label" and "id".

    `wanted` gives each role the column a person named, or None to find it by the usual names. Text and label must be
    found; a pair and an id are found or left out. Who names only the text wants no pair.
    """
    found: dict[str, str] = {}
    for role, column in roles.items():
        if column is not None and column not in fields:
            raise InputError(f"{name}: no column {column!r}; {_list_columns(fields)}; name another with --{role}")
        if column is not None:
            found[role] = column
    rest = {_normalize_name(field): field for field in fields if field not in found.values()}
    if "text" in roles and "text" not in found:
        found |= _text_columns(rest, roles, fields, name)
    if "label" in roles and "label" not in found:
        found["label"] = _single_candidate("label", [rest[label] for label in LABELS if label in rest], fields, name)
    if "id" in roles and "id" not in found and (ids := [rest[one] for one in IDS if one in rest]):
        found["id"] = ids[0]
    return found


def _text_columns(
    rest: Mapping[str, str], roles: Mapping[str, str | None], fields: Sequence[str], name: str
) -> dict[str, str]:
    """The text, or both texts of a pair, among the columns that nobody has named yet."""
    second = roles.get("pair")
    if second is not None:
        firsts = [rest[a] for a, b in PAIRS if b == _normalize_name(second) and a in rest]
        return {"text": firsts[0] if firsts else _single_candidate("text", _singles(rest, ()), fields, name)}
    pairs = [pair for pair in PAIRS if pair[0] in rest and pair[1] in rest]
    singles = _singles(rest, {text for pair in pairs for text in pair})
    if len(pairs) == 1 and not singles and "pair" in roles:
        first, second = pairs[0]
        return {"text": rest[first], "pair": rest[second]}
    return {
        "text": _single_candidate("text", [*(rest[text] for pair in pairs for text in pair), *singles], fields, name)
    }


def _singles(rest: Mapping[str, str], pair_columns: Iterable[str]) -> list[str]:
    return [rest[text] for text in TEXTS if text in rest and text not in pair_columns]


def _single_candidate(role: str, candidates: list[str], fields: Sequence[str], name: str) -> str:
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise InputError(
            f"{name}: {' and '.join(map(repr, candidates))} may each be the {role}; name the right column with --{role}"
            f"{' (and --pair)' if role == 'text' else ''}; {_list_columns(fields)}"
        )
    raise InputError(
        f"{name}: no column looks like the {role}; {_list_columns(fields)}; name it with --{role}, or add a header line if "
        f"the file has none"
    )


def _list_columns(fields: Sequence[str]) -> str:
    # A file without a header would otherwise show whole texts as the names of its columns.
    return f"its columns are {', '.join(repr(field if len(field) <= 40 else field[:39] + '…') for field in fields)}"
