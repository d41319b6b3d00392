"""Read a table of texts or pairs with labels: lines of a file in, TextCases out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertworks.datasets.files import Line, read_lines, recognise
from bertworks.errors import InputError
from bertworks.text.document import Counts

# Between the labels of a text that has several.
SEVERAL = "|"


@dataclass(frozen=True, slots=True)
class TextCase:
    """A text or a pair with its label as it is written, None where it is not known."""

    id: str
    place: str
    texts: tuple[str, ...]
    label: str | None = None


def read_texts(path: Path, columns: Mapping[str, str], counts: Counts | None) -> Iterator[TextCase]:
    """Yield the cases of a table of texts; see `Task.read`. A set whose broken lines are known says "broken"."""
    header = columns.get("header")
    broken = counts if columns.get("broken") else None
    return text_cases(read_lines(path, header.split(",") if header else None, broken), columns, path.name)


def text_cases(lines: Iterable[Line], columns: Mapping[str, str], name: str) -> Iterator[TextCase]:
    """Yield the cases of lines. A role whose column is "" is not looked for."""
    wanted: dict[str, str | None] = dict.fromkeys(("text", "pair", "label", "id"))
    wanted |= {role: column for role, column in columns.items() if role not in ("header", "broken")}
    wanted = {role: column for role, column in wanted.items() if column != ""}
    found: dict[str, str] = {}
    for number, line in enumerate(lines):
        found = found or recognise(list(line.fields), wanted, name)
        yield text_case(line.fields, found, line.place, str(number))


def text_case(fields: Mapping[str, Any], columns: Mapping[str, str], place: str, number: str) -> TextCase:
    """Return the case of one line of a file; an empty text is refused."""
    parts = [columns[part] for part in ("text", "pair") if part in columns]
    for column in parts:
        if column not in fields:  # of JSON Lines each may have other fields
            raise InputError(f"{place}: there is no '{column}', which other lines have; add it or remove the line")
        if fields[column] is None or not str(fields[column]).strip():
            raise InputError(f"{place}: the column '{column}' is empty; fill it or remove the line")
    texts = tuple(str(fields[column]) for column in parts)
    label = fields.get(columns["label"]) if "label" in columns else None
    if isinstance(label, list | tuple):
        label = SEVERAL.join(map(str, label))
    name = str(fields[columns["id"]]) if "id" in columns else number
    return TextCase(name, place, texts, None if label is None else str(label))
