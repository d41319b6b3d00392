"""CSV and TSV files with a header: one document per row, the text in the column `field`."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import replace

from bertworks.errors import InputError, show_names
from bertworks.text.chunks import FileChunk
from bertworks.text.decoding import decode
from bertworks.text.document import Counts, RawDocument
from bertworks.text.formats.format import Format, line_number, record_end

# A quote opens a quoted field only at the start of a field. The last quoted field may be unclosed.
_QUOTED = re.compile(rb'(?<![^,\n\r])"[^"]*+(?:""[^"]*+)*+("?)')


def _csv_record_end(data: bytes, start: int, chunk: FileChunk) -> int | None:
    """Return the first line end after `start` that is not inside quotes; `data` starts at a record."""
    end = data.find(b"\n", start)
    for quoted in _QUOTED.finditer(data):
        if end < 0 or quoted.start() > end:
            break
        if quoted.end() > end:
            end = data.find(b"\n", quoted.end())
    return end + 1 if end >= 0 else None


def _rows(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each row with the index of its first line."""
    if delimiter == "\t":
        for number, line in enumerate(text.split("\n")):
            yield number, line.split("\t")
        return
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    number = 0
    for row in reader:
        yield number, row
        number = reader.line_num


def _columns(chunk: FileChunk, delimiter: str) -> list[str]:
    text = decode(chunk.header, chunk.encoding, chunk.name, Counts())
    _, columns = next(_rows(text.rstrip("\n"), delimiter), (0, []))
    return [column.strip() for column in columns]


def _read(chunk: FileChunk, counts: Counts, delimiter: str) -> Iterator[RawDocument]:
    # The default limit of the csv module is 128 KiB per field; a document may be longer.
    csv.field_size_limit(2**31 - 1)
    column = _columns(chunk, delimiter).index(chunk.field)
    for line, row in _rows(chunk.decode(counts), delimiter):
        if not any(row):
            continue
        if column >= len(row):
            raise InputError(
                f"{chunk.name}, line {line_number(chunk, line)}: {len(row)} columns, but {chunk.field!r} is "
                f"column {column + 1}; fix or remove the row"
            )
        if text := row[column].strip():
            yield RawDocument(text, chunk.location(line), chunk.lines)
        else:
            counts["records skipped: no text"] += 1


def _check_quotes(chunk: FileChunk) -> None:
    """Raise InputError for an unclosed quote: a chunk ends with a record, so its end would close every quote."""
    for quoted in _QUOTED.finditer(chunk.data):
        if not quoted[1]:
            line = line_number(chunk, chunk.data.count(b"\n", 0, quoted.start()))
            raise InputError(f"{chunk.name}, line {line}: a quote is opened and never closed; close it")


def _read_csv(chunk: FileChunk, counts: Counts) -> Iterator[RawDocument]:
    _check_quotes(chunk)
    yield from _read(chunk, counts, ",")


def _read_tsv(chunk: FileChunk, counts: Counts) -> Iterator[RawDocument]:
    yield from _read(chunk, counts, "\t")


def _with_header(chunk: FileChunk, header: bytes, delimiter: str) -> FileChunk:
    chunk = replace(chunk, header=header)
    columns = _columns(chunk, delimiter)
    if chunk.field not in columns:
        raise InputError(
            f"{chunk.name}, line 1: no column {chunk.field!r}; the columns are "
            f"{show_names(columns)}; name the text's column with --field"
        )
    return chunk


def _prepare_csv(head: bytes, chunk: FileChunk) -> FileChunk:
    return _with_header(chunk, head[: _csv_record_end(head, 0, chunk)], ",")


def _prepare_tsv(head: bytes, chunk: FileChunk) -> FileChunk:
    return _with_header(chunk, head[: record_end(head, 0, chunk)], "\t")


CSV = Format(
    name="csv",
    extensions=(".csv",),
    read=_read_csv,
    find_boundary=_csv_record_end,
    prepare=_prepare_csv,
    whole_records=True,
    from_start=True,
)
TSV = Format(
    name="tsv",
    extensions=(".tsv",),
    read=_read_tsv,
    find_boundary=record_end,
    prepare=_prepare_tsv,
    whole_records=True,
)
