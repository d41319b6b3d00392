"""Texts beside their translations: a table of two columns, or two files line by line, in; cases out, nothing cut.

A pair of which one side is empty is left out and counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from bertworks.datasets.files import Record, kind_of_name, read_records
from bertworks.datasets.labelled_texts import TextExample
from bertworks.errors import InputError
from bertworks.text.compression import compression_of
from bertworks.text.document import Counts

# The one column of a file of plain lines.
_LINE_COLUMN = "\ufdd0"
# Usual names of the two columns; roles are those of any labelled file.
_COLUMN_NAMES = {
    "text": ("source", "src", "text", "input", "sentence1", "original", "原文", "文言文", "古文"),
    "label": ("target", "tgt", "translation", "label", "output", "sentence2", "reference", "译文", "现代文", "白话文"),
}
EMPTY_PAIRS = "pairs left out: one side is empty"


def read_pairs(path: Path, columns: Mapping[str, str], counts: Counts | None) -> Iterator[TextExample]:
    """Yield the pairs of a file. `columns` may name those of the text and of its translation, or with "targets" the
    ending of the file that holds the translations, line by line."""
    other = target_file(path, columns)
    pairs = _pairs_of_table(path, columns) if other is None else _pairs_of_files(path, other)
    for number, (text, target, place) in enumerate(pairs):
        if text.strip() and target.strip():
            yield TextExample(str(number), place, (text.strip(),), target.strip())
        elif counts is not None:
            counts[EMPTY_PAIRS] += 1


def target_file(path: Path, columns: Mapping[str, str]) -> Path | None:
    """Return the file that holds the translations of another: train.zh beside train.lzh, packed alike."""
    ending = columns.get("targets")
    if ending is None:
        return None
    packed = compression_of(path.name)
    found = path.with_name(path.name.removesuffix(packed)).with_suffix(f".{ending.removeprefix('.')}")
    found = found.with_name(found.name + packed)
    if found == path:
        raise InputError(f"{path} cannot be the file of its own translations; give another ending with --targets")
    if not found.is_file():
        raise InputError(f"there is no {found} with the translations of {path.name}; check the ending of --targets")
    return found


def _pairs_of_files(path: Path, target_path: Path) -> Iterator[tuple[str, str, str]]:
    lines = (read_records(one, (_LINE_COLUMN,), kind="text") for one in (path, target_path))
    for number, (text, target) in enumerate(itertools.zip_longest(*lines)):
        if text is None or target is None:
            short, long = (path, target_path) if text is None else (target_path, path)
            raise InputError(
                f"{short} ends after {number:,} lines, but {long.name} has more; the two have to go together line by "
                f"line: find the line from which on they do not"
            )
        yield text.fields[_LINE_COLUMN], target.fields[_LINE_COLUMN], text.location


def _pairs_of_table(path: Path, columns: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    header = columns.get("header")
    found: dict[str, str] = {}
    for line in read_records(path, header.split(",") if header else _header(path)):
        found = found or {role: _column(role, line, columns, path.name) for role in _COLUMN_NAMES}
        yield (*(field_of(line, found[role]) for role in _COLUMN_NAMES), line.location)  # type: ignore[misc]


def _header(path: Path) -> Sequence[str] | None:
    """Return the names of the columns of a table that has two and no header: its first line has no name we know."""
    if kind_of_name(path.name) in ("jsonl", "csv"):
        return None
    first = next(iter(read_records(path, (_LINE_COLUMN,), kind="text"))).fields[_LINE_COLUMN]
    if first.lstrip().startswith(("{", "[{")):
        return None
    names = first.split("\t")
    if len(names) == 1:
        raise InputError(
            f"{path} holds plain lines; write source, tab and target in each, or name the ending of the file that "
            f"holds their translations with --targets"
        )
    known = {name for several in _COLUMN_NAMES.values() for name in several}
    is_header = any(name.strip().lower() in known for name in names)
    return None if is_header or len(names) > 2 else ("source", "target")


def _column(role: str, record: Record, columns: Mapping[str, str], name: str) -> str:
    wanted = columns.get(role)
    if wanted is not None:
        return wanted
    found = [field for field in record.fields if field.strip().lower() in _COLUMN_NAMES[role]]
    if not found:
        listed = ", ".join(map(repr, record.fields))
        what = "the text" if role == "text" else "its translation"
        raise InputError(f"{name}: no column looks like {what}; its columns are {listed}; name it with --{role}")
    return found[0]


def field_of(record: Record, column: str) -> str:
    """Return the text in a column."""
    if column not in record.fields:
        raise InputError(
            f"{record.location}: there is no '{column}'; its columns are {', '.join(map(repr, record.fields))}"
        )
    value = record.fields[column]
    if not isinstance(value, str):
        raise InputError(f"{record.location}: '{column}' holds a {type(value).__name__}, not text; mend the line")
    return value


def unlabelled_texts(records: Iterable[Record], columns: Mapping[str, str]) -> Iterator[TextExample]:
    """Yield the texts of lines without translations, empty ones too: as many come out as go in."""
    column = columns.get("text")
    for number, line in enumerate(records):
        column = column or _column("text", line, columns, "the input")
        yield TextExample(str(number), line.location, (field_of(line, column).strip(),))
