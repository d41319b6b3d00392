"""Files that users hand over in, their JSON or TOML out; what is wrong with one is a reason of one line.

A file that cannot be read (permissions, a folder in its place, a failing disk) is not called damaged: it may be whole.
"""

from __future__ import annotations

import errno
import json
import stat
import tomllib
from pathlib import Path
from typing import Any

from bertworks.errors import InputError

# Levels of lists and tables in each other: more than any file of ours has, few enough for recursive functions.
MAX_DEPTH = 64
# A recipe has a few kilobytes; a longer one could have a key of so many dots that its parser takes minutes.
MAX_TOML_CHARACTERS = 2**17

_REASONS = {
    errno.ENOENT: "there is no such file; check the name",
    errno.EACCES: "reading it is not allowed; change its permissions",
    errno.EPERM: "reading it is not allowed; change its permissions",
    errno.EISDIR: "it is a folder; give a file",
    errno.ENOTDIR: "a part of its path is a file, not a folder; check the path",
    errno.ENAMETOOLONG: "its name is too long for a file; check the name",
    errno.ELOOP: "its links lead back to themselves; correct them",
    errno.EIO: "the disk reports an error; check the disk",
}


def unreadable_reason(error: OSError) -> str:
    """Return why a file cannot be read, and what to do: the end of a sentence after "cannot be read: "."""
    return _REASONS.get(error.errno or 0, f"{error.strerror or error}; check the file and its disk")


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text; raise ValueError with a reason of one line."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(_too_deep()) from None
    _check_depth(value)
    return value


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table of a TOML text; raise ValueError with a reason of one line."""
    if len(text) > MAX_TOML_CHARACTERS:
        raise ValueError(f"it has {len(text):,} characters; the most are {MAX_TOML_CHARACTERS:,}")
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ValueError(_too_deep()) from None
    _check_depth(table)
    return table


def convert_paths(request: Any, *names: str) -> None:
    """Turn strings in these fields of a frozen request into paths; for its `__post_init__`."""
    for name in names:
        value = getattr(request, name)
        if isinstance(value, str):
            object.__setattr__(request, name, Path(value))


def check_path(path: Path) -> None:
    """Refuse a path that no file can have: with a name of 300 characters, or with a zero byte."""
    try:
        path.lstat()
    except ValueError as error:
        raise InputError(f"{str(path)!r} is no path ({error}); check the name") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InputError(f"{path} cannot be read: {unreadable_reason(error)}") from None


def check_regular(path: Path) -> None:
    """Raise an OSError for a pipe or a device, whose content may never come or never end."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(None, "it is a pipe or a device, not a file")


def _too_deep() -> str:
    return f"lists and tables are nested more than {MAX_DEPTH} deep"


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        containers = [item for item in level if isinstance(item, dict | list)]
        if not containers:
            return
        level = [item for container in containers for item in _items(container)]
    raise ValueError(_too_deep())


def _items(container: dict[str, Any] | list[Any]) -> Any:
    return container.values() if isinstance(container, dict) else container
