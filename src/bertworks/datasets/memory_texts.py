"""Texts in memory in, a JSON Lines file out, which is read as any other source of documents."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bertworks.datasets.files import recognize_columns
from bertworks.datasets.tables import table_rows
from bertworks.disk import atomic_write
from bertworks.errors import InputError, show_value


def write_texts(texts: Any, path: Path) -> None:
    """Write texts, one document a line; memory is bounded if `texts` is an iterator.

    `texts` is a list or an iterator of texts or of rows, or a table with a column of texts.
    """
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise InputError(f"texts is {show_value(texts)}; give a list, an iterator or a table of texts")
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for text in _texts(texts):
            file.write(json.dumps({"text": text}) + "\n")
        if not file.tell():
            raise InputError("texts is empty; give at least one text")


def _texts(texts: Any) -> Iterator[str]:
    column = ""
    for index, row in enumerate(table_rows(texts, "texts") or texts):
        text = row
        if isinstance(row, Mapping):
            column = column or recognize_columns([str(name) for name in row], {"text": None}, "texts")["text"]
            text = row.get(column)
        if not isinstance(text, str):
            raise InputError(f"texts, row {index}: {show_value(text)} is not a text; give text")
        yield text
