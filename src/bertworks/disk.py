"""The one way files reach the disk: written under a temporary name, flushed, then renamed, so never half there."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertworks.errors import FolderError, SettingsError

# How an address of a store begins, after a path has made one slash of two.
_STORE_URL = re.compile(r"[a-z][a-z0-9+.-]+:/")


def check_on_disk(folder: Path) -> None:
    """Refuse the address of a store, such as s3://bucket/corpus, where files are written."""
    if _STORE_URL.match(str(folder)):
        raise SettingsError(
            f"{folder} is the address of a store; name a folder of a file system, which several machines share, or "
            f"mount the store: what is written there is mapped into memory when it is used"
        )


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; when the block ends well, flush it and rename it to `path`.

    Whatever goes wrong, `path` is either as it was or whole. A full disk or a folder that may not be written is
    reported in one sentence.
    """
    # The machine's name too: where several share a folder, a lost one may still write what another does again.
    temporary = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.part")
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


def explain_os_error(error: OSError, path: Path) -> FolderError:
    """Turn an operating system's refusal to write `path` into a sentence that says what to do."""
    reasons = {
        errno.ENOSPC: "the disk is full; free some space and run the same command again, it will continue",
        errno.EDQUOT: "the disk quota is used up; free some space and run the same command again, it will continue",
        errno.EACCES: "writing there is not allowed; choose another folder with --out or change its permissions",
        errno.EPERM: "writing there is not allowed; choose another folder with --out or change its permissions",
        errno.EROFS: "that file system is read-only; choose another folder with --out",
        errno.ENOTDIR: "a part of that path is a file, not a folder; choose another folder with --out",
        errno.EEXIST: "a file of that name is in the way; choose another folder with --out",
    }
    reason = reasons.get(error.errno or 0, f"{error.strerror or error}; check the disk and run the same command again")
    return FolderError(f"cannot write {path}: {reason}")


def write_bytes(path: Path, data: bytes) -> None:
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write JSON as people read it: indented, in the given order, one final newline."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, description: str) -> Any:
    """Return the JSON in `path`; `what` names it to people ("a corpus folder's manifest")."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FolderError(f"{path.parent} has no {path.name}: it is not, or not yet, {description}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise FolderError(f"{path} cannot be read as {description}: {error}") from error


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush_folder(folder: Path) -> None:
    """Make a rename itself durable. Not every system lets a folder be opened; those flush it by themselves."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
