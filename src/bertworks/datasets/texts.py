"""The name of a file in, its texts out one by one: a text a line, or a column of TSV, CSV or JSON Lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from bertworks.datasets.files import EXTENSIONS, Record, read_records, read_stream, recognise
from bertworks.errors import InputError
from bertworks.text.compression import compression_of

STANDARD_INPUT = "-"
# The one column of plain lines. A first line that repeats the name would be a heading, so no text may be like it.
_PLAIN_COLUMN = "\ufdd0"


def texts_in(file: str, column: str | None = None) -> Iterator[str]:
    """Yield the texts of a file, empty ones too; `-` is standard input. Nothing is kept in memory.

    A file is a table if its extension says so or a column is named; otherwise each of its lines is a text.
    """
    found = column
    for line in _records(file, column):
        if found is None:
            found = (
                _PLAIN_COLUMN
                if _PLAIN_COLUMN in line.fields
                else recognise(list(line.fields), {"text": None}, file)["text"]
            )
        if found not in line.fields:
            columns = ", ".join(map(repr, line.fields))
            raise InputError(f"{line.location}: no column {found!r}; it has {columns}; name the text's with --text")
        text = line.fields[found]
        if not isinstance(text, str):
            raise InputError(f"{line.location}: {found!r} holds a {type(text).__name__}, not text; mend the line")
        yield text


def _records(file: str, column: str | None) -> Iterator[Record]:
    if file == STANDARD_INPUT:
        kind, columns = (None, None) if column else ("text", (_PLAIN_COLUMN,))
        return read_stream(sys.stdin.buffer, kind, "standard input", columns)
    path = Path(file).expanduser()
    if path.is_dir():
        raise InputError(f"{file} is a folder; name a file with one text a line, or a table")
    if not path.exists():
        raise InputError(f"{file} does not exist; check the name")
    is_table = Path(path.name.removesuffix(compression_of(path.name))).suffix.lower() in EXTENSIONS
    return read_records(path) if is_table or column else read_records(path, (_PLAIN_COLUMN,), kind="text")
