"""Read a table of texts or pairs with labels: lines of a file in, TextCases out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertworks.datasets.files import Record, read_records, recognise
from bertworks.errors import InputError
from bertworks.text.document import Counts

# Between the labels of a text that has several.
LABEL_SEPARATOR = "|"


@dataclass(frozen=True, slots=True)
class TextExample:
    """A text or a pair with its label as it is written, None where it is not known."""

    id: str
    location: str
    texts: tuple[str, ...]
    label: str | None = None


def read_texts(path: Path, columns: Mapping[str, str], counts: Counts | None) -> Iterator[TextExample]:
    """Yield the cases of a table of texts; see `Task.read`. A set whose broken lines are known says "broken"."""
    header = columns.get("header")
    broken = counts if columns.get("broken") else None
    return text_examples(read_records(path, header.split(",") if header else None, broken), columns, path.name)


def text_examples(records: Iterable[Record], columns: Mapping[str, str], name: str) -> Iterator[TextExample]:
    """Yield the cases of lines. A role whose column is "" is not looked for."""
    wanted: dict[str, str | None] = dict.fromkeys(("text", "pair", "label", "id"))
    wanted |= {role: column for role, column in columns.items() if role not in ("header", "broken")}
    wanted = {role: column for role, column in wanted.items() if column != ""}
    found: dict[str, str] = {}
    for number, line in enumerate(records):
        found = found or recognise(list(line.fields), wanted, name)
        yield text_example(line.fields, found, line.location, str(number))


def text_example(fields: Mapping[str, Any], columns: Mapping[str, str], location: str, default_id: str) -> TextExample:
    """Return the case of one line of a file; an empty text is refused."""
    parts = [columns[part] for part in ("text", "pair") if part in columns]
    for column in parts:
        if column not in fields:  # of JSON Lines each may have other fields
            raise InputError(f"{location}: there is no '{column}', which other lines have; add it or remove the line")
        if fields[column] is None or not str(fields[column]).strip():
            raise InputError(f"{location}: the column '{column}' is empty; fill it or remove the line")
    texts = tuple(str(fields[column]) for column in parts)
    label = fields.get(columns["label"]) if "label" in columns else None
    if isinstance(label, list | tuple):
        label = LABEL_SEPARATOR.join(map(str, label))
    name = str(fields[columns["id"]]) if "id" in columns else default_id
    return TextExample(name, location, texts, None if label is None else str(label))
