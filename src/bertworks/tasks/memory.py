"""Labelled data in memory in, a JSON Lines file out, whose records a task reads as those of any other file.

Data is one of
  (inputs, labels)       two lists, arrays or iterators; an input is what `Model.predict` takes
  rows                   a list or an iterator of (input, label), (text, text, label) or dicts of fields
  a table                a dict of columns, a pandas or polars frame, a `datasets.Dataset`; see `datasets.tables`
  a path                 a file that is read as it is
"""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sized
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from bertworks.datasets.tables import json_value, table_rows
from bertworks.disk import atomic_write, staged_folder
from bertworks.errors import FolderError, InputError, show_value
from bertworks.folder_lock import lock_folder
from bertworks.tasks.contract import Task
from bertworks.tasks.inputs import fields_from_input

# The subfolder of a run with the labelled data that was in memory.
EXAMPLES = "data-in-memory"
_END = object()  # of the shorter of two iterators
# How messages name what is wrong: the line of a file that `write_rows` wrote, and an option of the command line.
_LINE = re.compile(r"\b(\w+)\.jsonl, line (\d+)")
_FILE = re.compile(r"\b(\w+)\.jsonl\b")
_OPTION = re.compile(r"--(text|pair|label|id)\b")


@runtime_checkable
class LabelledFieldsTask(Protocol):
    """A task whose records have the label under another name than "label", or inputs that are not texts."""

    @staticmethod
    def labelled_fields(value: Any, label: Any) -> dict[str, Any]:
        """Return the fields of a record: those of an input, as `Model.predict` takes it, and its label."""
        ...


def is_path(data: Any) -> bool:
    """Whether labelled data is a path of a file, rather than in memory."""
    return isinstance(data, str | os.PathLike)


def store_data(data: Mapping[str, Any], task: type[Task], folder: Path) -> dict[str, Path]:
    """Return the file of each split that is not None; what is in memory is written to the run folder `folder`."""
    in_memory = [split for split, values in data.items() if values is not None and not is_path(values)]
    if in_memory:
        with lock_folder(folder), staged_folder(folder / EXAMPLES) as staged:
            for split in in_memory:
                _check_same(write_rows(data[split], task, split, staged), folder)
    files = {split: Path(values) for split, values in data.items() if is_path(values)}
    return files | {split: folder / EXAMPLES / f"{split}.jsonl" for split in in_memory}


def _check_same(file: Path, folder: Path) -> None:
    """Refuse other data than that of the run that `folder` holds; one that never began may be replaced."""
    previous = folder / EXAMPLES / file.name
    if (folder / "recipe.toml").exists() and previous.exists() and not filecmp.cmp(file, previous, shallow=False):
        raise FolderError(f"{folder} holds a run with other rows in {file.stem}; choose another output")


def write_rows(data: Any, task: type[Task], name: str, folder: Path) -> Path:
    """Write labelled data as `folder`/NAME.jsonl and return the path; memory is bounded if `data` is an iterator."""
    path, count, kinds = folder / f"{name}.jsonl", 0, dict[str, str]()
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for count, fields in enumerate(_records(data, task, name), 1):
            _check_kinds(fields, kinds, f"{name}, row {count - 1}")
            file.write(json.dumps(fields, ensure_ascii=False) + "\n")
        if not count:
            raise InputError(f"{name} has no rows; give at least one example")
    return path


@contextlib.contextmanager
def locate_rows() -> Iterator[None]:
    """Let errors about a file of `write_rows` name the row in memory, counted from 0, and arguments for options."""
    try:
        yield
    except InputError as error:
        message = _LINE.sub(lambda match: f"{match[1]}, row {int(match[2]) - 1}", str(error))
        message = _OPTION.sub(r'columns={"\1": …}', _FILE.sub(r"\1", message))
        raise InputError(message) from None


def _records(data: Any, task: type[Task], name: str) -> Iterator[dict[str, Any]]:
    if isinstance(data, tuple) and len(data) == 2 and not all(isinstance(part, Mapping) for part in data):
        rows: Iterable[Any] = _paired(*data, name)
    else:
        rows = table_rows(data, name) or _iterate(data, name)
    for index, row in enumerate(rows):
        location = f"{name}, row {index}"
        try:
            fields = row if isinstance(row, Mapping) else _fields(row, task)
        except InputError as error:
            raise InputError(f"{location}: {error}") from None
        yield {key: json_value(value, f"{location}, {key}") for key, value in fields.items()}


def _iterate(data: Any, name: str) -> Iterable[Any]:
    if not isinstance(data, Iterable):
        raise InputError(
            f"{name} is of type {type(data).__name__}; give (texts, labels), a list of rows, a frame, or a path"
        )
    return data


def _paired(inputs: Any, labels: Any, name: str) -> Iterator[tuple[Any, Any]]:
    for title, values in (("inputs", inputs), ("labels", labels)):
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise InputError(f"{name}: the {title} are a single {type(values).__name__}; give a list of them")
    inputs, labels = _values(inputs, name), _values(labels, name)
    counts = [f"{len(values):,}" if isinstance(values, Sized) else "a stream of" for values in (inputs, labels)]
    for count, (value, label) in enumerate(zip_longest(inputs, labels, fillvalue=_END)):
        if value is _END or label is _END:
            shorter = "inputs" if value is _END else "labels"
            raise InputError(
                f"{name}: {counts[0]} inputs and {counts[1]} labels; the {shorter} end after {count:,}; give one label "
                f"for each input"
            )
        yield value, label


def _values(values: Any, name: str) -> Any:
    """Return inputs or labels; of a frame, its rows: the values of one column, or the tuples of several."""
    if not hasattr(values, "columns"):
        return values
    rows = [tuple(row.values()) for row in table_rows(values, name) or ()]
    return [row[0] for row in rows] if len(values.columns) == 1 else rows


def _fields(row: Any, task: type[Task]) -> dict[str, Any]:
    """Return the fields of a row that is not a dict: an input, or its texts, and the label."""
    if isinstance(row, str) or not isinstance(row, list | tuple) or len(row) < 2:
        raise InputError(f"{show_value(row)} has no label; give (text, label), or a dict of fields")
    value, label = row if len(row) == 2 else (row[:-1], row[-1])
    value = value.tolist() if hasattr(value, "tolist") else value
    if issubclass(task, LabelledFieldsTask):
        return task.labelled_fields(value, label)
    if not isinstance(value, str | list | tuple | Mapping):
        raise InputError(f"the input is {show_value(value)}, not a text; give text")
    return {**fields_from_input(task, value), "label": label}


def _check_kinds(fields: Mapping[str, Any], kinds: dict[str, str], location: str) -> None:
    """Refuse a column in which texts, numbers and truth values are mixed: 1 and "1" would be one label or two."""
    for column, value in fields.items():
        kind = _kind(value)
        if kind and kinds.setdefault(column, kind) != kind:
            raise InputError(
                f"{location}: {column!r} is {show_value(value)}, a {kind}, but a {kinds[column]} in the rows before; "
                f"give all of them as one type"
            )


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "truth value"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else ""
