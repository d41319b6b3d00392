"""Tables of texts or pairs with labels: records of a file in, TextExamples out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertworks.datasets.files import Record, read_records, recognize_columns
from bertworks.errors import InputError
from bertworks.text.document import Counts

# Separates the labels of a multi-label text, and the values of a text with several.
LABEL_SEPARATOR = "|"
# Keys of `columns` that are no roles.
_FLAGS = ("header", "broken")


@dataclass(frozen=True, slots=True)
class TextExample:
    """A text or a pair with its label as written, None if unknown."""

    id: str
    location: str
    texts: tuple[str, ...]
    label: str | None = None


def read_texts(path: Path, columns: Mapping[str, str], counts: Counts | None) -> Iterator[TextExample]:
    """Yield the examples of a table; see `Task.read`. With the role "broken", broken lines are skipped and counted."""
    broken_counts = counts if columns.get("broken") else None
    return text_examples(read_records(path, _header(columns), broken_counts), columns, path.name)


def text_columns(path: Path, columns: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of a table by role, with those that `read_texts` recognizes; the id is left out."""
    record = next(read_records(path, _header(columns), Counts() if columns.get("broken") else None))
    roles = recognize_columns(list(record.fields), _roles(columns), path.name)
    flags = {role: columns[role] for role in _FLAGS if role in columns}
    return {role: column for role, column in roles.items() if role != "id"} | flags


def text_examples(records: Iterable[Record], columns: Mapping[str, str], name: str) -> Iterator[TextExample]:
    """Yield the examples of records. A role whose column is "" is ignored."""
    roles, role_columns = _roles(columns), dict[str, str]()
    for index, record in enumerate(records):
        role_columns = role_columns or recognize_columns(list(record.fields), roles, name)
        yield text_example(record.fields, role_columns, record.location, str(index))


def _roles(columns: Mapping[str, str]) -> dict[str, str | None]:
    roles: dict[str, str | None] = dict.fromkeys(("text", "pair", "label", "id"))
    roles |= {role: column for role, column in columns.items() if role not in _FLAGS}
    return {role: column for role, column in roles.items() if column != ""}


def _header(columns: Mapping[str, str]) -> list[str] | None:
    header = columns.get("header")
    return header.split(",") if header else None


def text_example(fields: Mapping[str, Any], columns: Mapping[str, str], location: str, default_id: str) -> TextExample:
    """Return the example of one record; raise InputError for an empty text."""
    text_columns = [columns[role] for role in ("text", "pair") if role in columns]
    for column in text_columns:
        if column not in fields:  # JSON Lines may differ in their fields
            raise InputError(f"{location}: there is no '{column}', which other lines have; add it or remove the line")
        if fields[column] is None or not str(fields[column]).strip():
            raise InputError(f"{location}: the column '{column}' is empty; fill it in or remove the line")
    texts = tuple(str(fields[column]) for column in text_columns)
    label = fields.get(columns["label"]) if "label" in columns else None
    if isinstance(label, Mapping):
        label = [f"{name}={value}" for name, value in label.items()]
    if isinstance(label, list | tuple):
        label = LABEL_SEPARATOR.join(map(str, label))
    example_id = str(fields.get(columns["id"], default_id)) if "id" in columns else default_id
    return TextExample(example_id, location, texts, None if label is None else str(label))
