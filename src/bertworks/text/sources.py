"""Sources as people name them in (files, folders, globs, addresses, "-", …), Blocks out; Block in, Passages out."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertworks.errors import InputError, SettingsError
from bertworks.text import python_docs
from bertworks.text.archives import is_archive
from bertworks.text.blocks import Block, group_portions, is_parquet, origin, portions_of, stream_portions
from bertworks.text.compression import ByteStream, decompress, open_raw
from bertworks.text.decoding import HEAD_BYTES
from bertworks.text.document import Counts, RawDocument
from bertworks.text.files import File
from bertworks.text.formats.parquet import open_parquet
from bertworks.text.object_stores import is_address, list_files, stamp
from bertworks.text.portions import PART_BYTES, DocsPart, TextPortion, skip_reason
from bertworks.text.ranges import ReadSettings, detect_file_spec

__all__ = ["Block", "ReadSettings", "TextSource", "blocks", "inventory", "read", "total_bytes"]

STANDARD_INPUT = "-"
PYTHON_DOCS = "python-docs"
_GLOB_SIGNS = "*?["
_NUM_CHECKED_FILES = 16  # of a source; a folder may hold a million


@dataclass(frozen=True)
class TextSource:
    """Where text comes from: a file, a folder, a glob, "-" for standard input, or "python-docs".

    Files, folders and globs may lie in a store that fsspec knows, such as s3://bucket/texts.

    `weight` is how often its documents count against those of other sources; `split` puts all of it into one split.
    """

    path: str
    weight: float = 1.0
    split: str | None = None

    def __post_init__(self) -> None:
        if not self.path:
            raise SettingsError("a source has an empty name; give a file, a folder, a glob, '-' or 'python-docs'")
        if not 0 < self.weight < float("inf"):
            raise SettingsError(f"source {self.path}: weight {self.weight} is not a positive number")


@dataclass(frozen=True)
class _Pipe:
    """Standard input or a named pipe: read once, of unknown size."""

    path: str


def blocks(sources: Sequence[TextSource], settings: ReadSettings) -> Iterator[Block]:
    """Cut all sources into blocks, in order. Whatever can be refused at the door is refused before this returns."""
    found = [(number, _resolve(source)) for number, source in enumerate(sources)]
    if sum(isinstance(files, _Pipe) and files.path == STANDARD_INPUT for _, files in found) > 1:
        raise InputError("standard input ('-') is named twice; it can be read only once")
    for _, files in found:
        if isinstance(files, list):
            _check(files, settings)
    return _number_blocks(found, settings)


def read(block: Block, counts: Counts) -> Iterator[RawDocument]:
    """Read a block: its documents in order. What was skipped, cut or replaced is added to `counts`."""
    for portion in block.portions:
        yield from portion.read(block.settings, counts)
    for what in [what for what, num in counts.items() if not num]:
        del counts[what]


def total_bytes(sources: Sequence[TextSource]) -> int | None:
    """What all blocks will take from disk, about; None if a source is standard input or a pipe."""
    total = 0
    for source in sources:
        files = _resolve(source)
        if isinstance(files, _Pipe):
            return None
        total += sum(PART_BYTES if isinstance(file, DocsPart) else file.size for file in files)
    return total


_SourceFiles = list[File | DocsPart] | _Pipe


def _number_blocks(numbered_sources: list[tuple[int, _SourceFiles]], settings: ReadSettings) -> Iterator[Block]:
    number = 0
    for source, files in numbered_sources:
        for group in group_portions(_portions(files, settings), settings.block_bytes):
            num_bytes = sum(portion.num_bytes for portion in group)
            yield Block(number, source, origin(group), num_bytes, group, settings)
            number += 1


def _portions(files: _SourceFiles, settings: ReadSettings) -> Iterator[TextPortion]:
    if isinstance(files, _Pipe):
        yield from _pipe_portions(files, settings)
        return
    for file in files:
        if isinstance(file, DocsPart):
            yield file
        else:
            yield from portions_of(file, settings)


def _pipe_portions(pipe: _Pipe, settings: ReadSettings) -> Iterator[TextPortion]:
    if pipe.path == STANDARD_INPUT:
        file = File("", "standard input", 0, is_explicit=True)
        yield from stream_portions(ByteStream(sys.stdin.buffer, file.name), file, settings)
        return
    file = File(pipe.path, Path(pipe.path).name, 0, is_explicit=True)
    with open_raw(pipe.path, file.name) as raw:
        yield from stream_portions(ByteStream(raw, file.name), file, settings)


def _resolve(source: TextSource) -> _SourceFiles:
    """What a source's name stands for; refused if that is nothing."""
    if source.path == STANDARD_INPUT:
        return _Pipe(STANDARD_INPUT)
    if source.path == PYTHON_DOCS:
        return [DocsPart(part) for part in python_docs.parts()]
    if is_address(source.path):
        return [*list_files(source.path)]
    path = Path(source.path).expanduser()
    if path.is_dir():
        return [*_folder_files(path, path)]
    if path.exists():
        if not path.is_file():
            return _Pipe(str(path))
        return [_file(path, path.parent, is_explicit=True)]
    if any(sign in source.path for sign in _GLOB_SIGNS):
        return [*_glob_files(path)]
    raise InputError(f"{source.path} does not exist; check the name (relative names start from {Path.cwd().name}/)")


def _folder_files(folder: Path, base: Path) -> list[File]:
    """The visible files of a folder and those below it, sorted by name."""
    paths = []
    for parent, folders, names in os.walk(folder, onerror=_refuse_folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [Path(parent, name) for name in names if not name.startswith(".")]
    files = [_file(path, base, is_explicit=False) for path in paths]
    if not files:
        raise InputError(f"folder {folder} holds no files; give a folder with text in it")
    return sorted(files, key=lambda file: file.name)


def _refuse_folder(error: OSError) -> None:
    raise InputError(f"folder {error.filename} cannot be read: {error.strerror}; check its permissions")


def _glob_files(pattern: Path) -> list[File]:
    """The visible files that a pattern matches, and all files of folders that it matches, each once."""
    parts = pattern.parts
    fixed = next(number for number, part in enumerate(parts) if any(sign in part for sign in _GLOB_SIGNS))
    base = Path(*parts[:fixed])
    found: dict[str, File] = {}
    for path in sorted(base.glob("/".join(parts[fixed:]))):
        if any(part.startswith(".") for part in path.relative_to(base).parts):
            continue
        files = [_file(path, base, is_explicit=True)] if path.is_file() else []
        if path.is_dir() and any(path.iterdir()):
            files = _folder_files(path, base)
        found |= {file.path: file for file in files if file.path not in found}
    if not found:
        raise InputError(
            f"no file matches {pattern}; check the pattern, and quote it so that the shell leaves it alone"
        )
    return sorted(found.values(), key=lambda file: file.name)


def _file(path: Path, base: Path, is_explicit: bool) -> File:
    """A file with its absolute path, since workers may run elsewhere, and its name below the folder that was given."""
    name = path.relative_to(base).as_posix()
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}; mend or remove it") from error
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{name} is neither a file nor a folder; leave it out of the folder")
    if not os.access(path, os.R_OK):
        raise InputError(f"{name} cannot be read: no permission; change its permissions or leave it out")
    if is_explicit and not status.st_size:
        raise InputError(f"{name} is empty; fill it or leave it out")
    return File(str(path.absolute()), name, status.st_size, is_explicit)


def _check(files: list[File | DocsPart], settings: ReadSettings) -> None:
    """Look at the start of a source's first files before any work is done; the others are checked when read."""
    for file in files[:_NUM_CHECKED_FILES]:
        if isinstance(file, DocsPart) or is_archive(file.name):
            continue
        if is_parquet(file.name, settings):
            open_parquet(file.path, file.name, settings.field).close()
            continue
        with open_raw(file.path, file.name) as raw:
            stream = decompress(raw, file.name)
            if not skip_reason(stream, file):
                detect_file_spec(stream.peek(HEAD_BYTES), file.name, settings)


def inventory(sources: Sequence[TextSource]) -> dict[str, int | str]:
    """Return what the sources hold, told by names, sizes and times: equal before and after means nothing changed."""
    names, times = hashlib.sha256(), hashlib.sha256()
    num_files = num_bytes = 0
    for source in sources:
        files = _resolve(source)
        for file in [] if isinstance(files, _Pipe) else files:
            size = PART_BYTES if isinstance(file, DocsPart) else file.size
            names.update(f"{file.name}\0{size}\0".encode(errors="surrogatepass"))
            if isinstance(file, File):
                times.update(f"{_time_of(file)}\0".encode())
            num_files += 1
            num_bytes += size
    return {"files": num_files, "bytes": num_bytes, "names": names.hexdigest()[:16], "times": times.hexdigest()[:16]}


def _time_of(file: File) -> str:
    return stamp(file.path) if is_address(file.path) else str(Path(file.path).stat().st_mtime_ns)
