"""The columns that a model was trained with, and another file, in; the columns to read that file with out.

`recorded` and `given` map roles to columns, as in `Task.read`: "text", "pair" and "label"; "header" for a file without
one; "targets" and "broken".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from bertworks.datasets.files import has_common_names, read_records
from bertworks.datasets.translations import target_file
from bertworks.errors import InputError, SettingsError

_TEXT_ROLES = ("text", "pair")
_LINE = "line"


def columns_for_file(path: Path, recorded: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the given columns of a file, and the recorded ones that it has.

    If it lacks a recorded text, only the given columns are returned: the others are recognized by their names. The
    recorded header is for a file whose first line has neither the recorded names nor common ones.
    """
    header = given.get("header")
    names = _column_names(path, header)
    columns = recorded_columns_in(names, recorded, given)
    if columns is None and header is None and "header" in recorded and not has_common_names(names):
        header = recorded["header"]
        columns = recorded_columns_in(_column_names(path, header), recorded, given)
    if columns is None:
        return dict(given)
    return {**columns, **_flags(path, recorded), **({} if header is None else {"header": header}), **given}


def recorded_columns_in(
    names: Collection[str], recorded: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, str] | None:
    """Return the recorded texts and label among `names`, without the roles that are given; None if a text is not."""
    texts = {role: recorded[role] for role in _TEXT_ROLES if role in recorded and role not in given}
    if any(column not in names for column in texts.values()):
        return None
    labels = {"label": recorded["label"]} if "label" in recorded and "label" not in given else {}
    return texts | {role: column for role, column in labels.items() if column in names}


def _flags(path: Path, recorded: Mapping[str, str]) -> dict[str, str]:
    flags = {role: recorded[role] for role in ("broken", "targets") if role in recorded}
    try:
        target_file(path, flags)
    except InputError:  # there is no file of translations beside this one
        del flags["targets"]
    return flags


def _column_names(path: Path, header: str | None) -> set[str]:
    """Return the names of the columns of a table, and the indices of columns of words and tags, which have no names."""
    names: set[str] = set()
    try:
        for record in read_records(path, header.split(",") if header else None):
            names.update(record.fields)
            break
        for record in read_records(path, (_LINE,), kind="text"):
            num_words = len(record.fields[_LINE].split())
            names.update(map(str, range(-num_words, num_words)))
            break
    except (InputError, SettingsError):  # it is no such table; whoever reads it says what is wrong
        pass
    return names
