"""What a block has to read: files, ranges, payloads or row groups in, Passages out, in a worker process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Protocol, cast

from bertworks.errors import InputError
from bertworks.text import python_docs
from bertworks.text.compression import ByteStream, compression_of, decompress, open_raw
from bertworks.text.decoding import HEAD_BYTES, non_text_reason
from bertworks.text.document import Counts, RawDocument
from bertworks.text.files import File
from bertworks.text.formats import FORMATS
from bertworks.text.formats.format import FileChunk, FileSpec
from bertworks.text.formats.parquet import read_row_groups
from bertworks.text.formats.wikipedia import PAGE_START
from bertworks.text.ranges import ReadSettings, read_chunks, read_chunks_as

COMPRESSION_RATIO = 3  # text is about three times as long as its compressed form
PART_BYTES = 2**18  # what a part of the built-in corpus is taken to hold, for grouping and progress


class TextPortion(Protocol):
    """Something to read. `size` is the text it holds, about; `num_bytes` what it takes from disk."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    def read(self, settings: ReadSettings, counts: Counts) -> Iterator[RawDocument]: ...


def _read_chunk(chunk: FileChunk, counts: Counts) -> Iterator[RawDocument]:
    num_passages = 0
    for passage in FORMATS[chunk.spec.format].read(chunk, counts):
        num_passages += 1
        yield passage
    # A document that fills a whole stretch was counted where it began.
    if chunk.ends_inside_document and not (chunk.starts_inside_document and num_passages == 1):
        counts["documents cut: longer than a block"] += 1


@dataclass(frozen=True, slots=True)
class WholeFile:
    """A small file, unpacked and decided on by the worker."""

    file: File

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def size(self) -> int:
        return self.file.size * (COMPRESSION_RATIO if compression_of(self.file.path) else 1)

    @property
    def num_bytes(self) -> int:
        return self.file.size

    def read(self, settings: ReadSettings, counts: Counts) -> Iterator[RawDocument]:
        with open_raw(self.file.path, self.file.name) as raw:
            stream = decompress(raw, self.file.name)
            why = skip_reason(stream, self.file)
            if why:
                counts[f"files skipped: {why}"] += 1
                return
            for stretch in read_chunks(stream, settings):
                yield from _read_chunk(stretch, counts)


def skip_reason(stream: ByteStream, file: File) -> str:
    """Why a file is passed over: "empty", "not text" or "" if it is not. One that a person named is refused instead."""
    stream.drop_byte_order_mark()
    head = stream.peek(HEAD_BYTES)
    if head and not file.is_explicit:
        return "not text" if non_text_reason(head) else ""
    if not head and file.is_explicit:
        raise InputError(f"{file.name} is empty; fill it or leave it out")
    return "" if head else "empty"


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A large file or a member of an archive that is not read; only counted."""

    name: str
    reason: str
    num_bytes: int
    size: int = 0

    def read(self, settings: ReadSettings, counts: Counts) -> Iterator[RawDocument]:
        counts[f"files skipped: {self.reason}"] += 1
        yield from ()


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes of a large uncompressed file."""

    path: str
    chunk: FileChunk  # without its data
    num_bytes: int

    @property
    def name(self) -> str:
        return self.chunk.spec.name

    @property
    def size(self) -> int:
        return self.num_bytes

    def read(self, settings: ReadSettings, counts: Counts) -> Iterator[RawDocument]:
        with open_raw(self.path, self.name) as raw:
            raw.seek(self.chunk.offset)
            data = raw.read(self.num_bytes)
        if len(data) < self.num_bytes:
            raise InputError(f"{self.name} became shorter while it was read; start again when it no longer changes")
        yield from _read_chunk(self.chunk.with_data(data), counts)


@dataclass(frozen=True, slots=True)
class Payload:
    """A stretch that the parent took from a stream."""

    chunk: FileChunk
    num_bytes: int

    @property
    def name(self) -> str:
        return self.chunk.spec.name

    @property
    def size(self) -> int:
        return len(self.chunk.data)

    def read(self, settings: ReadSettings, counts: Counts) -> Iterator[RawDocument]:
        yield from _read_chunk(self.chunk, counts)


@dataclass(frozen=True, slots=True)
class Bz2Streams:
    """Whole streams of a multi-stream dump, each of them whole pages."""

    path: str
    spec: FileSpec
    start: int
    num_bytes: int

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def size(self) -> int:
        return self.num_bytes * COMPRESSION_RATIO

    def read(self, settings: ReadSettings, counts: Counts) -> Iterator[RawDocument]:
        with open_raw(self.path, self.name) as raw:
            raw.seek(self.start)
            stream = decompress(cast(IO[bytes], _BoundedReader(raw, self.num_bytes)), self.name)
            if self.start and not stream.peek(HEAD_BYTES).lstrip().startswith((PAGE_START, b"</mediawiki>")):
                raise InputError(f"{self.name}: the stream at byte {self.start} starts inside a page; recompress it")
            for stretch in read_chunks_as(self.spec, stream, settings.block_bytes):
                yield from _read_chunk(stretch, counts)


class _BoundedReader:
    """The next bytes of a file as if they were all of it."""

    def __init__(self, raw: IO[bytes], size: int) -> None:
        self._raw, self._remaining = raw, size

    def read(self, size: int = -1, /) -> bytes:
        data = self._raw.read(min(size, self._remaining) if size >= 0 else self._remaining)
        self._remaining -= len(data)
        return data


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Row groups of a Parquet file."""

    path: str
    spec: FileSpec
    groups: tuple[int, ...]
    size: int
    num_bytes: int

    @property
    def name(self) -> str:
        return self.spec.name

    def read(self, settings: ReadSettings, counts: Counts) -> Iterator[RawDocument]:
        yield from read_row_groups(self.path, self.spec, self.groups, counts)


@dataclass(frozen=True, slots=True)
class DocsPart:
    """A part of the built-in corpus."""

    part: str
    size: int = PART_BYTES
    num_bytes: int = PART_BYTES

    @property
    def name(self) -> str:
        return self.part

    def read(self, settings: ReadSettings, counts: Counts) -> Iterator[RawDocument]:
        yield from python_docs.read(self.part, counts=counts)
