"""Hashes of files: a path in, its sha256 out; recorded hashes in, the files that differ out, checked by threads.

A file larger than a block also has the hash of each block, so that several threads can check it at once.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from bertworks.integrity.verified_files import FileIdentity, verified_files
from bertworks.parallel.workers import num_cores
from bertworks.progress import Progress, ProgressCallback, ignore_progress
from bertworks.reading import check_regular, unreadable_reason

BLOCK_BYTES = 2**24
_READ_BYTES = 2**20
# More threads than this wait for the disk.
_MAX_THREADS = 8
_WATCH_SECONDS = 0.2
_DIGEST = re.compile(r"[0-9a-f]{64}")

MISSING, UNREADABLE, CHANGED = "missing", "unreadable", "changed"


def is_digest(value: object) -> bool:
    """Return whether a value is a sha256 in hexadecimal digits."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def is_file_name(value: object) -> bool:
    """Return whether a value names a file below a folder: a relative path without "..", on any system."""
    if not isinstance(value, str) or not value or any(character in value for character in "\\:\0"):
        return False
    path = PurePosixPath(value)
    return not path.is_absolute() and ".." not in path.parts and path.as_posix() == value and value != "."


@dataclass(frozen=True, slots=True)
class FileHash:
    """The recorded hash of a file; of a large one also its size and the hashes of its blocks."""

    sha256: str
    size: int | None = None
    block_bytes: int = BLOCK_BYTES
    blocks: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"size": self.size, "sha256": self.sha256}
        return entry | {"block_bytes": self.block_bytes, "blocks": list(self.blocks)} if self.blocks else entry

    @classmethod
    def from_json(cls, entry: Any) -> FileHash:
        """Build a hash from its JSON; raise ValueError if it is not one."""
        if not isinstance(entry, dict) or not is_digest(entry.get("sha256")) or type(entry.get("size")) is not int:
            raise ValueError("it needs a size and a sha256")
        size, blocks, block_bytes = entry["size"], entry.get("blocks", []), entry.get("block_bytes", BLOCK_BYTES)
        if size < 0 or type(block_bytes) is not int or block_bytes < 1:
            raise ValueError("its sizes must be positive")
        if not isinstance(blocks, list) or not all(map(is_digest, blocks)):
            raise ValueError("its blocks must be a list of sha256")
        if blocks and len(blocks) != -(-size // block_bytes):
            raise ValueError(f"{size} bytes do not have {len(blocks)} blocks of {block_bytes}")
        return cls(entry["sha256"], size, block_bytes, tuple(blocks))


def hash_file(path: Path) -> FileHash:
    """Return the hash of a file, with those of its blocks if it has several."""
    whole, blocks, size = hashlib.sha256(), [], 0
    with path.open("rb") as file:
        block = hashlib.sha256()
        while data := file.read(_READ_BYTES):  # BLOCK_BYTES is a multiple of it
            whole.update(data)
            block.update(data)
            size += len(data)
            if size % BLOCK_BYTES == 0:
                blocks.append(block.hexdigest())
                block = hashlib.sha256()
    if size % BLOCK_BYTES:
        blocks.append(block.hexdigest())
    return FileHash(whole.hexdigest(), size, BLOCK_BYTES, tuple(blocks) if len(blocks) > 1 else ())


def hash_range(descriptor: int, start: int = 0, size: int | None = None) -> str:
    """Return the sha256 of a range of an open file, to its end if `size` is None."""
    digest = hashlib.sha256()
    position, end = start, None if size is None else start + size
    while end is None or position < end:
        data = os.pread(descriptor, _READ_BYTES if end is None else min(_READ_BYTES, end - position), position)
        if not data:
            break
        digest.update(data)
        position += len(data)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class FileProblem:
    """A file that is not as recorded: `kind` is MISSING, UNREADABLE or CHANGED; `detail`: why it cannot be read."""

    name: str
    kind: str
    detail: str = ""


@dataclass(slots=True)
class _PendingFile:
    """A file that is being hashed: what it was before, and how many ranges of it are left."""

    name: str
    expected: FileHash
    identity: FileIdentity | None  # of a settled file, to be remembered
    num_ranges: int = 1


class FileVerification:
    """Compares the files of a folder with their recorded hashes, in threads that do not keep the process alive.

    Files that were verified before and have not changed since are not read again, unless `use_memory` is False.
    """

    def __init__(self, folder: Path, hashes: Mapping[str, FileHash], use_memory: bool = True) -> None:
        self._folder, self._hashes, self._use_memory = folder, hashes, use_memory
        self._memory = verified_files(folder)
        self._problems: dict[str, FileProblem] = {}
        self._lock = threading.Lock()
        self._ranges = self._find_ranges()
        self._done = threading.Event()
        self._num_running = min(num_cores(), _MAX_THREADS)
        self.num_verified = 0
        for _ in range(self._num_running):
            threading.Thread(target=self._run, name="hashing", daemon=True).start()

    @property
    def problems(self) -> list[FileProblem]:
        """The problems found so far, in the order of the recorded hashes."""
        with self._lock:
            return [self._problems[name] for name in self._hashes if name in self._problems] if self._problems else []

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all files are compared, or for some seconds; return whether they are."""
        is_done = self._done.wait(seconds)
        if is_done:
            assert self.num_verified + len(self._problems) == len(self._hashes), "a thread has failed"
        return is_done

    def _run(self) -> None:
        try:
            while (item := self._next_range()) is not None:
                self._verify_range(*item)
        finally:
            with self._lock:
                self._num_running -= 1
                is_last = self._num_running == 0
            if is_last:
                self._memory.save()
                self._done.set()

    def _next_range(self) -> tuple[_PendingFile, int, int | None, str] | None:
        with self._lock:
            return next(self._ranges, None)

    def _find_ranges(self) -> Iterator[tuple[_PendingFile, int, int | None, str]]:
        """Yield the ranges to hash, each with its file and the expected hash; runs under the lock."""
        for name, expected in self._hashes.items():
            try:
                check_regular(self._folder / name)
                identity = FileIdentity.of((self._folder / name).stat())
            except OSError as error:
                self._problems[name] = problem_of(name, error)
                continue
            if expected.size not in (None, identity.size):
                self._problems[name] = FileProblem(name, CHANGED)
            elif self._use_memory and self._memory.contains(name, identity, expected.sha256):
                self.num_verified += 1
            else:
                yield from _split(_PendingFile(name, expected, identity if identity.is_settled() else None))

    def _verify_range(self, file: _PendingFile, start: int, size: int | None, expected: str) -> None:
        problem = None
        try:
            descriptor = os.open(self._folder / file.name, os.O_RDONLY)
            try:
                if hash_range(descriptor, start, size) != expected:
                    problem = FileProblem(file.name, CHANGED)
                after = FileIdentity.of(os.fstat(descriptor))
            finally:
                os.close(descriptor)
        except OSError as error:
            problem = problem_of(file.name, error)
        with self._lock:
            file.num_ranges -= 1
            if problem is not None:
                self._problems.setdefault(file.name, problem)
            elif not file.num_ranges and file.name not in self._problems:
                self.num_verified += 1
                if after == file.identity:
                    self._memory.add(file.name, after, file.expected.sha256)


def find_problems(
    folder: Path,
    hashes: Mapping[str, FileHash],
    use_memory: bool = True,
    watch: ProgressCallback = ignore_progress,
) -> list[FileProblem]:
    """Return the files that are not as recorded, in the order of `hashes`."""
    verification = FileVerification(folder, hashes, use_memory)
    while not verification.wait(_WATCH_SECONDS):
        watch(Progress("verifying", verification.num_verified, len(hashes), "files"))
    return verification.problems


def _split(file: _PendingFile) -> Iterator[tuple[_PendingFile, int, int | None, str]]:
    """Yield the blocks of a large file, or the whole of a small one."""
    expected = file.expected
    if not expected.blocks:
        yield file, 0, None, expected.sha256
        return
    file.num_ranges = len(expected.blocks)
    for number, digest in enumerate(expected.blocks):
        yield file, number * expected.block_bytes, expected.block_bytes, digest


def problem_of(name: str, error: OSError) -> FileProblem:
    """Return the problem of a file that cannot be read."""
    kind = MISSING if isinstance(error, FileNotFoundError | NotADirectoryError) else UNREADABLE
    return FileProblem(name, kind, unreadable_reason(error))
