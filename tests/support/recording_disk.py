"""A disk that records: writes below a folder in, every state that a crash could leave behind out.

After each fsync, rename, removal and new folder three states are taken, which bound what real file systems do:

killed      the process ended, the system did not: all that was written is there
ahead       a power cut, names before data: all names are there, files have what was last synced, or nothing
behind      a power cut, data before names: only the names of synced folders are there
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

# The relative path of each file and its content; folders have None.
State = dict[str, bytes | None]
_EVENTS = ("fsync", "fdatasync", "rename", "replace", "unlink", "remove", "mkdir", "rmdir", "truncate", "ftruncate")


@dataclass(slots=True)
class RecordingDisk:
    """The folder, what is durable in it, and the states so far, each once, with the event after which it was taken."""

    folder: Path
    synced_contents: dict[int, bytes] = field(default_factory=dict)  # by inode
    synced_entries: dict[int, dict[str, int]] = field(default_factory=dict)  # by inode of the folder: name -> inode
    states: dict[tuple[tuple[str, bytes | None], ...], str] = field(default_factory=dict)
    held: list[int] = field(default_factory=list)  # open descriptors: an inode is not used again while it is open

    def __post_init__(self) -> None:
        """Everything that is there already is durable."""
        for path in (self.folder, *self.folder.rglob("*")):
            descriptor = os.open(path, os.O_RDONLY)
            self.sync(descriptor)
            os.close(descriptor)

    def record(self, event: str) -> None:
        """Take the three states."""
        for name, state in (("killed", self._killed()), ("ahead", self._ahead()), ("behind", self._behind())):
            self.states.setdefault(tuple(sorted(state.items())), f"{name}, after {event}")

    def sync(self, descriptor: int) -> None:
        """Make the open file or folder durable."""
        status = os.fstat(descriptor)
        if status.st_ino not in self.synced_entries and status.st_ino not in self.synced_contents:
            self.held.append(os.dup(descriptor))
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if stat.S_ISDIR(status.st_mode):
            self.synced_entries[status.st_ino] = _entries(path)
        else:
            self.synced_contents[status.st_ino] = Path(f"/proc/self/fd/{descriptor}").read_bytes()

    def _killed(self) -> State:
        return {
            str(path.relative_to(self.folder)): None if path.is_dir() else path.read_bytes()
            for path in self.folder.rglob("*")
        }

    def _ahead(self) -> State:
        return {
            str(path.relative_to(self.folder)): (
                None if path.is_dir() else self.synced_contents.get(path.stat().st_ino, b"")
            )
            for path in self.folder.rglob("*")
        }

    def _behind(self) -> State:
        state: State = {}

        def add(inode: int, prefix: str) -> None:
            for name, child in self.synced_entries.get(inode, {}).items():
                if child in self.synced_entries:
                    state[prefix + name] = None
                    add(child, f"{prefix}{name}/")
                else:
                    state[prefix + name] = self.synced_contents.get(child, b"")

        add(self.folder.stat().st_ino, "")
        return state


def _entries(folder: Path) -> dict[str, int]:
    return {entry.name: entry.inode() for entry in os.scandir(folder)}


@contextmanager
def recording(folder: Path) -> Iterator[RecordingDisk]:
    """Record what this process does below a folder."""
    disk = RecordingDisk(folder)
    disk.record("the beginning")
    with pytest.MonkeyPatch.context() as patch:
        for name in _EVENTS:
            patch.setattr(os, name, _recorded(disk, name, getattr(os, name)))
        yield disk
    disk.record("the end")
    for descriptor in disk.held:
        os.close(descriptor)


def _recorded(disk: RecordingDisk, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def recorded(*args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        if name in ("fsync", "fdatasync"):
            disk.sync(args[0])
        disk.record(f"{name} {' '.join(str(arg) for arg in args)}")
        return result

    return recorded


def restore(state: tuple[tuple[str, bytes | None], ...], folder: Path) -> None:
    """Write a state to an empty folder."""
    for name, content in state:
        path = folder / name
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
