"""A tar or zip archive in, its members out as streams, one at a time; nothing is written to disk."""

from __future__ import annotations

import functools
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import IO, Any, cast

from bertworks.errors import InputError
from bertworks.text.chunks import FileChunk
from bertworks.text.compression import COMPRESSIONS, ByteStream, decompress, open_raw

_TAR_SUFFIXES = (".tar", ".tgz", *(f".tar{suffix}" for suffix in COMPRESSIONS))
_ZIP_SUFFIXES = (".zip",)
# What zipfile raises for damaged or encrypted archives.
_ZIP_ERRORS = (zipfile.BadZipFile, RuntimeError, OSError, ValueError, EOFError, OverflowError, struct.error)

# A file inside an archive, its bytes, and a function that returns how far the archive on disk was read.
Member = tuple[FileChunk, ByteStream, Callable[[], int]]


def is_archive(name: str) -> bool:
    return name.lower().endswith((*_TAR_SUFFIXES, *_ZIP_SUFFIXES))


def members(archive: FileChunk) -> Iterator[Member]:
    """Yield the visible files of an archive in its own order. Each must be read before the next is requested."""
    with open_raw(archive.path, archive.name) as raw:
        yield from (_zip_members if archive.name.lower().endswith(_ZIP_SUFFIXES) else _tar_members)(raw, archive)


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") or part == "__MACOSX" for part in PurePosixPath(name).parts)


def _member(content: IO[bytes], name: str, size: int, archive: FileChunk, tell: Callable[[], int]) -> Member:
    full_name = f"{archive.name}/{name.lstrip('/')}"
    return FileChunk(path="", name=full_name, num_bytes=size), decompress(content, full_name), tell


def _tar_members(raw: IO[bytes], archive: FileChunk) -> Iterator[Member]:
    packed_name = archive.name[: -len(".tgz")] + ".gz" if archive.name.lower().endswith(".tgz") else archive.name
    stream = decompress(raw, packed_name)
    stream.name = archive.name
    try:
        with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|") as tar:
            for info in tar:
                content = tar.extractfile(info) if info.isreg() and not _is_hidden(info.name) else None
                if content is not None:
                    yield _member(content, info.name, info.size, archive, raw.tell)
                # tarfile keeps a list of all members for random access, which would grow without bound.
                cast(Any, tar).members = []
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise InputError(f"{archive.name} is damaged or truncated ({error}); copy or download it again") from error


def _zip_members(raw: IO[bytes], archive: FileChunk) -> Iterator[Member]:
    try:
        with zipfile.ZipFile(raw) as file:
            for info in file.infolist():
                if info.filename.endswith("/") or _is_hidden(info.filename):
                    continue
                end = info.header_offset + info.compress_size
                with file.open(info) as content:
                    yield _member(content, info.filename, info.file_size, archive, functools.partial(int, end))
    except _ZIP_ERRORS as error:
        raise InputError(f"{archive.name} cannot be unpacked ({error}); unpack it by hand and give the text") from error
