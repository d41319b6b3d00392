"""CSV or TSV with a header in, one Passage a row out: the text stands in one column."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator

from bertworks.errors import InputError
from bertworks.text.decoding import decode
from bertworks.text.document import Counts, Passage
from bertworks.text.formats.format import Format, Reading, Stretch, record_end

# A quoted field starts at the start of a field; a quote elsewhere is an ordinary character. The last one may be open.
_QUOTED = re.compile(rb'(?<![^,\n\r])"[^"]*+(?:""[^"]*+)*+("?)')


def _csv_record_end(data: bytes, at: int, reading: Reading) -> int | None:
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


def _columns(reading: Reading, delimiter: str) -> list[str]:
    text = decode(reading.header, reading.encoding, reading.name, Counts())
    _, columns = next(_rows(text.rstrip("\n"), delimiter), (0, []))
    return [column.strip() for column in columns]


def _read(stretch: Stretch, counts: Counts, delimiter: str) -> Iterator[Passage]:
    # The csv module refuses fields over 128 KiB unless told; a document may be longer.
    csv.field_size_limit(2**31 - 1)
    reading = stretch.reading
    column = _columns(reading, delimiter).index(reading.field)
    for number, row in _rows(stretch.text(counts), delimiter):
        if not any(row):
            continue
        if column >= len(row):
            raise InputError(
                f"{reading.name}, line {stretch.line_number(number)}: {len(row)} columns, but {reading.field!r} is "
                f"column {column + 1}; mend or remove the row"
            )
        if text := row[column].strip():
            yield Passage(text, stretch.place(number), reading.lines)
        else:
            counts["records skipped: no text"] += 1


def _refuse_open_quote(stretch: Stretch) -> None:
    """A stretch ends where a record ends; an open quote at its end means a quote of the file is never closed."""
    for quoted in _QUOTED.finditer(stretch.data):
        if not quoted[1]:
            line = stretch.line_number(stretch.data.count(b"\n", 0, quoted.start()))
            raise InputError(f"{stretch.reading.name}, line {line}: a quote is opened and never closed; close it")


def _read_csv(stretch: Stretch, counts: Counts) -> Iterator[Passage]:
    _refuse_open_quote(stretch)
    yield from _read(stretch, counts, ",")


def _read_tsv(stretch: Stretch, counts: Counts) -> Iterator[Passage]:
    yield from _read(stretch, counts, "\t")


def _with_header(reading: Reading, header: bytes, delimiter: str) -> Reading:
    reading = Reading(reading.name, reading.format, reading.field, reading.lines, reading.encoding, header)
    columns = _columns(reading, delimiter)
    if reading.field not in columns:
        raise InputError(
            f"{reading.name}, line 1: no column {reading.field!r}; the columns are "
            f"{', '.join(map(repr, columns))}; name the text's column with --field"
        )
    return reading


def _prepare_csv(head: bytes, reading: Reading) -> Reading:
    return _with_header(reading, head[: _csv_record_end(head, 0, reading)], ",")


def _prepare_tsv(head: bytes, reading: Reading) -> Reading:
    return _with_header(reading, head[: record_end(head, 0, reading)], "\t")


CSV = Format("csv", (".csv",), _read_csv, _csv_record_end, prepare=_prepare_csv, whole_records=True, from_start=True)
TSV = Format("tsv", (".tsv",), _read_tsv, record_end, prepare=_prepare_tsv, whole_records=True)
