"""CSV or TSV with a header in, one Passage a row out: the text stands in one column."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator

from bertworks.errors import InputError
from bertworks.text.decoding import decode
from bertworks.text.document import Counts, RawDocument
from bertworks.text.formats.format import FileChunk, FileSpec, Format, record_end

# A quoted field starts at the start of a field; a quote elsewhere is an ordinary character. The last one may be open.
_QUOTED = re.compile(rb'(?<![^,\n\r])"[^"]*+(?:""[^"]*+)*+("?)')


def _csv_record_end(data: bytes, at: int, spec: FileSpec) -> int | None:
    """The first line end behind `at` that is not inside quotes; `data` starts at a record."""
    end = data.find(b"\n", at)
    for quoted in _QUOTED.finditer(data):
        if end < 0 or quoted.start() > end:
            break
        if quoted.end() > end:
            end = data.find(b"\n", quoted.end())
    return end + 1 if end >= 0 else None


def _rows(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Each row with the number of its first line, counted from 0."""
    if delimiter == "\t":
        for number, line in enumerate(text.split("\n")):
            yield number, line.split("\t")
        return
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    number = 0
    for row in reader:
        yield number, row
        number = reader.line_num


def _columns(spec: FileSpec, delimiter: str) -> list[str]:
    text = decode(spec.header, spec.encoding, spec.name, Counts())
    _, columns = next(_rows(text.rstrip("\n"), delimiter), (0, []))
    return [column.strip() for column in columns]


def _read(chunk: FileChunk, counts: Counts, delimiter: str) -> Iterator[RawDocument]:
    # The csv module refuses fields over 128 KiB unless told; a document may be longer.
    csv.field_size_limit(2**31 - 1)
    reading = chunk.spec
    column = _columns(reading, delimiter).index(reading.field)
    for number, row in _rows(chunk.text(counts), delimiter):
        if not any(row):
            continue
        if column >= len(row):
            raise InputError(
                f"{reading.name}, line {chunk.line_number(number)}: {len(row)} columns, but {reading.field!r} is "
                f"column {column + 1}; mend or remove the row"
            )
        if text := row[column].strip():
            yield RawDocument(text, chunk.location(number), reading.lines)
        else:
            counts["records skipped: no text"] += 1


def _refuse_open_quote(chunk: FileChunk) -> None:
    """A stretch ends where a record ends; an open quote at its end means a quote of the file is never closed."""
    for quoted in _QUOTED.finditer(chunk.data):
        if not quoted[1]:
            line = chunk.line_number(chunk.data.count(b"\n", 0, quoted.start()))
            raise InputError(f"{chunk.spec.name}, line {line}: a quote is opened and never closed; close it")


def _read_csv(chunk: FileChunk, counts: Counts) -> Iterator[RawDocument]:
    _refuse_open_quote(chunk)
    yield from _read(chunk, counts, ",")


def _read_tsv(chunk: FileChunk, counts: Counts) -> Iterator[RawDocument]:
    yield from _read(chunk, counts, "\t")


def _with_header(spec: FileSpec, header: bytes, delimiter: str) -> FileSpec:
    spec = FileSpec(spec.name, spec.format, spec.field, spec.lines, spec.encoding, header)
    columns = _columns(spec, delimiter)
    if spec.field not in columns:
        raise InputError(
            f"{spec.name}, line 1: no column {spec.field!r}; the columns are "
            f"{', '.join(map(repr, columns))}; name the text's column with --field"
        )
    return spec


def _prepare_csv(head: bytes, spec: FileSpec) -> FileSpec:
    return _with_header(spec, head[: _csv_record_end(head, 0, spec)], ",")


def _prepare_tsv(head: bytes, spec: FileSpec) -> FileSpec:
    return _with_header(spec, head[: record_end(head, 0, spec)], "\t")


CSV = Format("csv", (".csv",), _read_csv, _csv_record_end, prepare=_prepare_csv, whole_records=True, from_start=True)
TSV = Format("tsv", (".tsv",), _read_tsv, record_end, prepare=_prepare_tsv, whole_records=True)
