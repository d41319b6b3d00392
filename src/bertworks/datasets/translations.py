"""Parallel texts: a table of two columns, or two files line by line, in; TextExamples out.

A pair with an empty side is skipped and counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from bertworks.datasets.files import Record, kind_of_name, read_records
from bertworks.datasets.labelled_texts import TextExample
from bertworks.errors import InputError, show_names
from bertworks.text.compression import compression_of
from bertworks.text.document import Counts

# The column name of a file of plain lines.
_LINE_COLUMN = "\ufdd0"
# Common names of the two columns, by role.
_COLUMN_NAMES = {
    "text": ("source", "src", "text", "input", "sentence1", "original", "原文", "文言文", "古文"),
    "label": ("target", "tgt", "translation", "label", "output", "sentence2", "reference", "译文", "现代文", "白话文"),
}
EMPTY_PAIRS = "pairs skipped: one side is empty"


def read_pairs(path: Path, columns: Mapping[str, str], counts: Counts | None) -> Iterator[TextExample]:
    """Yield the pairs of a file. `columns` may name those of the text and of its translation, or as "targets" the
    extension of a file with the translations, line by line."""
    target_path = target_file(path, columns)
    pairs = _pairs_of_table(path, columns) if target_path is None else _pairs_of_files(path, target_path)
    for index, (text, target, location) in enumerate(pairs):
        if text.strip() and target.strip():
            yield TextExample(str(index), location, (text.strip(),), target.strip())
        elif counts is not None:
            counts[EMPTY_PAIRS] += 1


def target_file(path: Path, columns: Mapping[str, str]) -> Path | None:
    """Return the file with the translations of another: train.zh beside train.lzh, with the same compression."""
    extension = columns.get("targets")
    if extension is None:
        return None
    compression = compression_of(path.name)
    target = path.with_name(path.name.removesuffix(compression)).with_suffix(f".{extension.removeprefix('.')}")
    target = target.with_name(target.name + compression)
    if target == path:
        raise InputError(f"{path} cannot be the file of its own translations; give another extension with --targets")
    if not target.is_file():
        raise InputError(f"there is no {target} with the translations of {path.name}; check the extension in --targets")
    return target


def _pairs_of_files(path: Path, target_path: Path) -> Iterator[tuple[str, str, str]]:
    lines = (read_records(file, (_LINE_COLUMN,), kind="text") for file in (path, target_path))
    for index, (text, target) in enumerate(itertools.zip_longest(*lines)):
        if text is None or target is None:
            short, long = (path, target_path) if text is None else (target_path, path)
            raise InputError(
                f"{short} ends after {index:,} lines, but {long.name} has more; line N of one must translate line N of "
                f"the other"
            )
        yield text.fields[_LINE_COLUMN], target.fields[_LINE_COLUMN], text.location


def _pairs_of_table(path: Path, columns: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    header = columns.get("header")
    role_columns: dict[str, str] = {}
    for record in read_records(path, header.split(",") if header else _header(path)):
        role_columns = role_columns or {role: _column(role, record, columns, path.name) for role in _COLUMN_NAMES}
        text, target = (field_of(record, role_columns[role]) for role in _COLUMN_NAMES)
        yield text, target, record.location


def _header(path: Path) -> Sequence[str] | None:
    """Return the columns of a two-column table without a header: its first line has no common column name."""
    if kind_of_name(path.name) in ("jsonl", "csv"):
        return None
    first = next(iter(read_records(path, (_LINE_COLUMN,), kind="text"))).fields[_LINE_COLUMN]
    if first.lstrip().startswith(("{", "[{")):
        return None
    names = first.split("\t")
    if len(names) == 1:
        raise InputError(
            f"{path} has plain lines; write source, tab and target in each, or name the extension of the file with "
            f"their translations with --targets"
        )
    common_names = {name for names_of_role in _COLUMN_NAMES.values() for name in names_of_role}
    is_header = any(name.strip().lower() in common_names for name in names)
    return None if is_header or len(names) > 2 else ("source", "target")


def _column(role: str, record: Record, columns: Mapping[str, str], name: str) -> str:
    explicit = columns.get(role)
    if explicit is not None:
        return explicit
    candidates = [field for field in record.fields if field.strip().lower() in _COLUMN_NAMES[role]]
    if not candidates:
        names = show_names(record.fields)
        description = "the text" if role == "text" else "its translation"
        raise InputError(f"{name}: no column looks like {description}; the columns are {names}; name it with --{role}")
    return candidates[0]


def field_of(record: Record, column: str) -> str:
    """Return the string in a column."""
    if column not in record.fields:
        raise InputError(f"{record.location}: there is no '{column}'; the columns are {show_names(record.fields)}")
    value = record.fields[column]
    if not isinstance(value, str):
        raise InputError(f"{record.location}: '{column}' is a {type(value).__name__}, not a string; correct the line")
    return value


def unlabelled_texts(records: Iterable[Record], columns: Mapping[str, str]) -> Iterator[TextExample]:
    """Yield one example per record without a translation, also for empty texts."""
    column = columns.get("text")
    for index, record in enumerate(records):
        column = column or _column("text", record, columns, "the input")
        yield TextExample(str(index), record.location, (field_of(record, column).strip(),))
