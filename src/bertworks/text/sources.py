"""Sources as users name them (files, folders, globs, addresses, "-", …) in, Blocks out; Block in, RawDocuments out."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertworks.errors import InputError, SettingsError
from bertworks.reading import check_path
from bertworks.text import python_docs
from bertworks.text.archives import is_archive
from bertworks.text.blocks import STANDARD_INPUT, Block, group_chunks, is_parquet, split_file
from bertworks.text.chunks import FileChunk
from bertworks.text.compression import decompress, open_raw
from bertworks.text.decoding import HEAD_BYTES
from bertworks.text.document import Counts, RawDocument
from bertworks.text.formats.parquet import open_parquet
from bertworks.text.object_stores import is_address, list_files, stamp
from bertworks.text.readers import read_chunk, skip_reason
from bertworks.text.splitting import ReadSettings, detect_format

__all__ = ["Block", "ReadSettings", "TextSource", "blocks", "inventory", "read", "total_bytes"]

PYTHON_DOCS = "python-docs"
_PART_BYTES = 2**18  # assumed size of a part of the built-in corpus, for grouping and progress
_GLOB_CHARACTERS = "*?["
_NUM_CHECKED_FILES = 16  # per source; a folder may hold a million


@dataclass(frozen=True)
class TextSource:
    """Where text comes from: a file, a folder, a glob, "-" for standard input, or "python-docs".

    Files, folders and globs may be addresses of an object store that fsspec supports, such as s3://bucket/texts.

    `weight` is the sampling weight of its documents relative to other sources; `split` assigns all of them to one
    split.
    """

    path: str
    weight: float = 1.0
    split: str | None = None

    def __post_init__(self) -> None:
        if not self.path:
            raise SettingsError("a source has an empty name; give a file, a folder, a glob, '-' or 'python-docs'")
        if not 0 < self.weight < float("inf"):
            raise SettingsError(f"source {self.path}: weight {self.weight} is not a positive number")


def blocks(sources: Sequence[TextSource], settings: ReadSettings) -> Iterator[Block]:
    """Split all sources into blocks, in order. Sources that cannot be read raise InputError before this returns."""
    files_by_source = [_list_source(source) for source in sources]
    if sum(file.kind == "pipe" and file.path == STANDARD_INPUT for files in files_by_source for file in files) > 1:
        raise InputError("standard input ('-') is named twice; it can be read only once")
    for files in files_by_source:
        _check_files(files, settings)
    return _number_blocks(files_by_source, settings)


def read(block: Block, counts: Counts) -> Iterator[RawDocument]:
    """Yield the documents of a block in order. Whatever is skipped, split or replaced is added to `counts`."""
    for chunk in block.chunks:
        yield from read_chunk(chunk, block.settings, counts)
    for name in [name for name, count in counts.items() if not count]:
        del counts[name]


def total_bytes(sources: Sequence[TextSource]) -> int | None:
    """Return the approximate size on disk of all blocks; None if a source is standard input or a pipe."""
    total = 0
    for source in sources:
        files = _list_source(source)
        if any(file.kind == "pipe" for file in files):
            return None
        total += sum(file.num_bytes for file in files)
    return total


def inventory(sources: Sequence[TextSource]) -> dict[str, int | str]:
    """Return counts and hashes of the sources' file names, sizes and modification times, to detect changes."""
    names, times = hashlib.sha256(), hashlib.sha256()
    num_files = num_bytes = 0
    for source in sources:
        for file in _list_source(source):
            if file.kind == "pipe":
                continue
            names.update(f"{file.name}\0{file.num_bytes}\0".encode(errors="surrogatepass"))
            if file.kind == "file":
                times.update(f"{_modification_stamp(file)}\0".encode())
            num_files += 1
            num_bytes += file.num_bytes
    return {"files": num_files, "bytes": num_bytes, "names": names.hexdigest()[:16], "times": times.hexdigest()[:16]}


def _modification_stamp(file: FileChunk) -> str:
    return stamp(file.path) if is_address(file.path) else str(Path(file.path).stat().st_mtime_ns)


def _number_blocks(files_by_source: list[list[FileChunk]], settings: ReadSettings) -> Iterator[Block]:
    number = 0
    for source_index, files in enumerate(files_by_source):
        chunks = (chunk for file in files for chunk in split_file(file, settings))
        for group in group_chunks(chunks, settings.block_bytes):
            yield Block(number, source_index, group, settings)
            number += 1


def _list_source(source: TextSource) -> list[FileChunk]:
    """Return the files of a source, one chunk each; raise InputError if there are none."""
    if source.path == STANDARD_INPUT:
        return [_pipe(STANDARD_INPUT, "standard input")]
    if source.path == PYTHON_DOCS:
        return [
            FileChunk(path="", name=part, num_bytes=_PART_BYTES, text_bytes=_PART_BYTES, kind="python-docs")
            for part in python_docs.parts()
        ]
    if is_address(source.path):
        return list_files(source.path)
    path = Path(source.path).expanduser()
    check_path(path)
    if path.is_dir():
        return _folder_files(path, path)
    if path.exists():
        return [_file(path, path.parent, is_explicit=True) if path.is_file() else _pipe(str(path), path.name)]
    if any(character in source.path for character in _GLOB_CHARACTERS):
        return _glob_files(path)
    raise InputError(f"{source.path} does not exist; check the name (relative names start from {Path.cwd().name}/)")


def _pipe(path: str, name: str) -> FileChunk:
    return FileChunk(path=path, name=name, num_bytes=0, kind="pipe", is_explicit=True)


def _folder_files(folder: Path, base: Path) -> list[FileChunk]:
    """Return the visible files of a folder and its subfolders, sorted by name."""
    paths = []
    for parent, folders, names in os.walk(folder, onerror=_raise_unreadable_folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [Path(parent, name) for name in names if not name.startswith(".")]
    files = [_file(path, base, is_explicit=False) for path in paths]
    if not files:
        raise InputError(f"folder {folder} holds no files; give a folder with text in it")
    return sorted(files, key=lambda file: file.name)


def _raise_unreadable_folder(error: OSError) -> None:
    raise InputError(f"folder {error.filename} cannot be read: {error.strerror}; check its permissions")


def _glob_files(pattern: Path) -> list[FileChunk]:
    """Return the visible files that match a pattern and all files of matching folders, each once."""
    parts = pattern.parts
    num_fixed = next(i for i, part in enumerate(parts) if any(character in part for character in _GLOB_CHARACTERS))
    base = Path(*parts[:num_fixed])
    matches: dict[str, FileChunk] = {}
    for path in sorted(base.glob("/".join(parts[num_fixed:]))):
        if any(part.startswith(".") for part in path.relative_to(base).parts):
            continue
        files = [_file(path, base, is_explicit=True)] if path.is_file() else []
        if path.is_dir() and any(path.iterdir()):
            files = _folder_files(path, base)
        matches |= {file.path: file for file in files if file.path not in matches}
    if not matches:
        raise InputError(
            f"no file matches {pattern}; check the pattern, and quote it so that the shell does not expand it"
        )
    return sorted(matches.values(), key=lambda file: file.name)


def _file(path: Path, base: Path, is_explicit: bool) -> FileChunk:
    """Return a file with its absolute path, since workers may run elsewhere, and its name relative to `base`."""
    name = path.relative_to(base).as_posix()
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}; fix or remove it") from error
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{name} is neither a file nor a folder; leave it out of the folder")
    if not os.access(path, os.R_OK):
        raise InputError(f"{name} cannot be read: no permission; change its permissions or leave it out")
    if is_explicit and not status.st_size:
        raise InputError(f"{name} is empty; fill it or leave it out")
    return FileChunk(path=str(path.absolute()), name=name, num_bytes=status.st_size, is_explicit=is_explicit)


def _check_files(files: list[FileChunk], settings: ReadSettings) -> None:
    """Check the format of the first files of a source before any work is done; the others are checked when read."""
    for file in files[:_NUM_CHECKED_FILES]:
        if file.kind != "file" or is_archive(file.name):
            continue
        if is_parquet(file.name, settings):
            open_parquet(file.path, file.name, settings.field).close()
            continue
        with open_raw(file.path, file.name) as raw:
            stream = decompress(raw, file.name)
            if not skip_reason(stream, file):
                detect_format(stream.peek(HEAD_BYTES), file, settings)
