"""The memory of verified files: a folder in, which of its files had which sha256 out, kept in the user's cache folder.

A file is recognized by its size, times and inode, so that it is hashed again after any change. What is remembered only
saves time: a memory that is damaged, or that cannot be written, counts as empty.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

from bertworks.disk import write_json
from bertworks.errors import FolderError

# A file that changed so recently could change again without another time: some file systems count in seconds.
_TIME_RESOLUTION_NS = 2 * 10**9
# Memories of more folders than this are removed, the oldest first.
_MAX_FOLDERS = 1_000


class FileIdentity(NamedTuple):
    """What a file is recognized by. The change time cannot be set back, unlike the time of modification."""

    size: int
    modified_ns: int
    changed_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)

    def is_settled(self) -> bool:
        """Whether any later change of the file gives it another time."""
        return time.time_ns() - max(self.modified_ns, self.changed_ns) > _TIME_RESOLUTION_NS


class VerifiedFiles:
    """The verified files of one folder, by name. Threads may share it."""

    def __init__(self, folder: Path) -> None:
        self._path = _memory_file(folder)
        self._entries = {} if self._path is None else _read_entries(self._path)
        self._lock = threading.Lock()
        self._is_saved = True

    def contains(self, name: str, identity: FileIdentity, sha256: str) -> bool:
        """Return whether the file had this hash when it had this identity."""
        return self._entries.get(name) == (identity, sha256)

    def add(self, name: str, identity: FileIdentity, sha256: str) -> None:
        """Remember a file that was settled before it was hashed."""
        with self._lock:
            self._entries[name] = (identity, sha256)
            self._is_saved = False

    def save(self) -> None:
        """Write the memory for other processes, if it has changed and the cache folder can be written."""
        with self._lock:
            if self._is_saved or self._path is None:
                return
            content = {name: [*identity, sha256] for name, (identity, sha256) in self._entries.items()}
            self._is_saved = True
        with contextlib.suppress(FolderError, OSError):
            write_json(self._path, content)
            _remove_oldest(self._path.parent)


@functools.lru_cache(maxsize=_MAX_FOLDERS)
def _verified_files(folder: Path) -> VerifiedFiles:
    return VerifiedFiles(folder)


def verified_files(folder: Path) -> VerifiedFiles:
    """Return the memory of a folder, one for all threads of this process."""
    return _verified_files(folder.resolve())


def _memory_file(folder: Path) -> Path | None:
    """Return the file in the user's cache folder; None if there is no such folder."""
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not root.is_absolute():
        try:
            root = Path.home() / ".cache"
        except RuntimeError:  # a user without a home
            return None
    return root / "bertworks" / "verified" / f"{hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]}.json"


def _read_entries(path: Path) -> dict[str, tuple[FileIdentity, str]]:
    try:
        content = json.loads(path.read_bytes())
        return {str(name): (FileIdentity(*map(int, entry[:4])), str(entry[4])) for name, entry in content.items()}
    except (OSError, ValueError, TypeError, AttributeError, IndexError, KeyError, RecursionError):
        return {}


def _remove_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    for path in files[: max(0, len(files) - _MAX_FOLDERS)]:
        path.unlink(missing_ok=True)
