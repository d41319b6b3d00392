"""Atomic writes: every file and folder is written under a temporary name, flushed to disk, and then renamed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertworks.errors import FolderError, SettingsError
from bertworks.reading import parse_json, unreadable_reason

# The URL of an object store after a conversion to Path, which collapses "//" into "/".
_STORE_URL = re.compile(r"[a-z][a-z0-9+.-]+:/")


def check_on_disk(folder: Path) -> None:
    """Refuse the URL of an object store, such as s3://bucket/corpus, as an output folder."""
    if _STORE_URL.match(str(folder)):
        raise SettingsError(
            f"{folder} is the URL of an object store; name a folder of a (shared) file system, or mount the store: the "
            f"files are memory-mapped when they are read"
        )


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; if the block succeeds, flush the file and rename it to `path`.

    On any error `path` is unchanged. A full disk or missing permissions become a FolderError of one sentence.
    """
    temporary = path.with_name(_temporary_name(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        flush_folder(path.parent)
    except OSError as error:
        raise explain_os_error(error, path) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to write into; if the block succeeds, flush all files and rename it to `path`.

    If `path` is a folder already, the new files replace those of the same name there, and other files stay. On any
    error `path` is unchanged, and the staged folder is removed.
    """
    name = _temporary_name(path)
    staged = path / name if path.is_dir() else path.with_name(name)
    try:
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        yield staged
        _flush_tree(staged)
        if staged.parent == path:
            _move_entries(staged, path)
        else:
            staged.rename(path)
        flush_folder(staged.parent)
    except OSError as error:
        raise explain_os_error(error, path) from error
    except FolderError as error:  # the caller knows `path`, not the staged folder
        raise FolderError(str(error).replace(str(staged), str(path))) from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _temporary_name(path: Path) -> str:
    # With the host name: on a shared disk, a process of a lost node may still write the file that is being redone.
    return f".{path.name.lstrip('.')}.{platform.node()}.{os.getpid()}.part"


def _flush_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_dir():
            flush_folder(path)
            continue
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    flush_folder(folder)


def _move_entries(source: Path, target: Path) -> None:
    for entry in sorted(source.iterdir()):
        if entry.is_dir():
            shutil.rmtree(target / entry.name, ignore_errors=True)
        entry.replace(target / entry.name)


def explain_os_error(error: OSError, path: Path) -> FolderError:
    """Turn an OSError of writing `path` into one sentence that says what to do."""
    reasons = {
        errno.ENOSPC: "the disk is full; free some space and run the same command again, it will resume",
        errno.EDQUOT: "the disk quota is used up; free some space and run the same command again, it will resume",
        errno.EACCES: "writing there is not allowed; choose another folder with --output or change its permissions",
        errno.EPERM: "writing there is not allowed; choose another folder with --output or change its permissions",
        errno.EROFS: "that file system is read-only; choose another folder with --output",
        errno.ENOTDIR: "a part of that path is a file, not a folder; choose another folder with --output",
        errno.EEXIST: "a file of that name is in the way; choose another folder with --output",
    }
    reason = reasons.get(error.errno or 0, f"{error.strerror or error}; check the disk and run the same command again")
    return FolderError(f"cannot write {path}: {reason}")


def write_bytes(path: Path, data: bytes) -> None:
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON with the keys in the given order and a final newline."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, description: str) -> Any:
    """Return the JSON in `path`; `description` says in errors what the file should be, e.g. "a model folder"."""
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FolderError(f"{path.parent} has no {path.name}: it is not, or not yet, {description}") from None
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {unreadable_reason(error)}") from None
    except ValueError as error:
        raise FolderError(f"{path} cannot be read as {description}: {error}") from error


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush_folder(folder: Path) -> None:
    """Make a rename durable. Some systems cannot open folders; they flush them by themselves."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
