"""A file name in, its texts out, streamed: one text per line, or a column of TSV, CSV or JSON Lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from bertworks.datasets.files import EXTENSIONS, Record, read_records, read_stream, recognize_columns
from bertworks.errors import InputError, show_names
from bertworks.reading import check_path
from bertworks.text.compression import compression_of

STANDARD_INPUT = "-"
# The column name of plain lines. A first line equal to it would be taken for a header, so it is a noncharacter.
_PLAIN_COLUMN = "\ufdd0"


def texts_in(file: str, column: str | None = None) -> Iterator[str]:
    """Yield the texts of a file, empty ones too, in constant memory; `-` is standard input.

    A file is a table if its extension says so or a column is named; otherwise each of its lines is a text.
    """
    text_column = column
    for record in _records(file, column):
        if text_column is None:
            text_column = (
                _PLAIN_COLUMN
                if _PLAIN_COLUMN in record.fields
                else recognize_columns(list(record.fields), {"text": None}, file)["text"]
            )
        if text_column not in record.fields:
            raise InputError(
                f"{record.location}: no column {text_column!r}; there are "
                f"{show_names(record.fields)}; name the text's column with --text"
            )
        text = record.fields[text_column]
        if not isinstance(text, str):
            raise InputError(
                f"{record.location}: {text_column!r} is a {type(text).__name__}, not a string; correct the line"
            )
        yield text


def _records(file: str, column: str | None) -> Iterator[Record]:
    if file == STANDARD_INPUT:
        kind, columns = (None, None) if column else ("text", (_PLAIN_COLUMN,))
        return read_stream(sys.stdin.buffer, kind, "standard input", columns)
    path = Path(file).expanduser()
    check_path(path)
    if path.is_dir():
        raise InputError(f"{file} is a folder; name a file with one text per line, or a table")
    if not path.exists():
        raise InputError(f"{file} does not exist; check the name")
    is_table = Path(path.name.removesuffix(compression_of(path.name))).suffix.lower() in EXTENSIONS
    return read_records(path) if is_table or column else read_records(path, (_PLAIN_COLUMN,), kind="text")
