"""What a block has to read: files, ranges, payloads or row groups in, Passages out, in a worker process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Protocol, cast

from bertworks.errors import InputError
from bertworks.text import python_docs
from bertworks.text.compression import ByteStream, compression_of, open_raw, unpacked
from bertworks.text.decoding import HEAD_BYTES, why_not_text
from bertworks.text.document import Counts, Passage
from bertworks.text.files import File
from bertworks.text.formats import FORMATS
from bertworks.text.formats.format import Reading, Stretch
from bertworks.text.formats.parquet import read_row_groups
from bertworks.text.formats.wikipedia import PAGE_START
from bertworks.text.ranges import ReadSettings, stretches, stretches_as

UNPACKED_RATIO = 3  # text is about three times as long as its compressed form
PART_BYTES = 2**18  # what a part of the built-in corpus is taken to hold, for grouping and progress


class Portion(Protocol):
    """Something to read. `size` is the text it holds, about; `num_bytes` what it takes from disk."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    def passages(self, settings: ReadSettings, counts: Counts) -> Iterator[Passage]: ...


def _read_stretch(stretch: Stretch, counts: Counts) -> Iterator[Passage]:
    num_passages = 0
    for passage in FORMATS[stretch.reading.format].read(stretch, counts):
        num_passages += 1
        yield passage
    # A document that fills a whole stretch was counted where it began.
    if stretch.cut_after and not (stretch.cut_before and num_passages == 1):
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
        return self.file.size * (UNPACKED_RATIO if compression_of(self.file.path) else 1)

    @property
    def num_bytes(self) -> int:
        return self.file.size

    def passages(self, settings: ReadSettings, counts: Counts) -> Iterator[Passage]:
        with open_raw(self.file.path, self.file.name) as raw:
            stream = unpacked(raw, self.file.name)
            why = why_skipped(stream, self.file)
            if why:
                counts[f"files skipped: {why}"] += 1
                return
            for stretch in stretches(stream, settings):
                yield from _read_stretch(stretch, counts)


def why_skipped(stream: ByteStream, file: File) -> str:
    """Why a file is passed over: "empty", "not text" or "" if it is not. One that a person named is refused instead."""
    stream.drop_byte_order_mark()
    head = stream.peek(HEAD_BYTES)
    if head and not file.named:
        return "not text" if why_not_text(head) else ""
    if not head and file.named:
        raise InputError(f"{file.name} is empty; fill it or leave it out")
    return "" if head else "empty"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A large file or a member of an archive that is not read; only counted."""

    name: str
    why: str
    num_bytes: int
    size: int = 0

    def passages(self, settings: ReadSettings, counts: Counts) -> Iterator[Passage]:
        counts[f"files skipped: {self.why}"] += 1
        yield from ()


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes of a large uncompressed file."""

    path: str
    stretch: Stretch  # without its data
    num_bytes: int

    @property
    def name(self) -> str:
        return self.stretch.reading.name

    @property
    def size(self) -> int:
        return self.num_bytes

    def passages(self, settings: ReadSettings, counts: Counts) -> Iterator[Passage]:
        with open_raw(self.path, self.name) as raw:
            raw.seek(self.stretch.offset)
            data = raw.read(self.num_bytes)
        if len(data) < self.num_bytes:
            raise InputError(f"{self.name} became shorter while it was read; start again when it no longer changes")
        yield from _read_stretch(self.stretch.filled(data), counts)


@dataclass(frozen=True, slots=True)
class Payload:
    """A stretch that the parent took from a stream."""

    stretch: Stretch
    num_bytes: int

    @property
    def name(self) -> str:
        return self.stretch.reading.name

    @property
    def size(self) -> int:
        return len(self.stretch.data)

    def passages(self, settings: ReadSettings, counts: Counts) -> Iterator[Passage]:
        yield from _read_stretch(self.stretch, counts)


@dataclass(frozen=True, slots=True)
class Bz2Streams:
    """Whole streams of a multi-stream dump, each of them whole pages."""

    path: str
    reading: Reading
    start: int
    num_bytes: int

    @property
    def name(self) -> str:
        return self.reading.name

    @property
    def size(self) -> int:
        return self.num_bytes * UNPACKED_RATIO

    def passages(self, settings: ReadSettings, counts: Counts) -> Iterator[Passage]:
        with open_raw(self.path, self.name) as raw:
            raw.seek(self.start)
            stream = unpacked(cast(IO[bytes], _Part(raw, self.num_bytes)), self.name)
            if self.start and not stream.peek(HEAD_BYTES).lstrip().startswith((PAGE_START, b"</mediawiki>")):
                raise InputError(f"{self.name}: the stream at byte {self.start} starts inside a page; recompress it")
            for stretch in stretches_as(self.reading, stream, settings.block_bytes):
                yield from _read_stretch(stretch, counts)


class _Part:
    """The next bytes of a file as if they were all of it."""

    def __init__(self, raw: IO[bytes], size: int) -> None:
        self._raw, self._left = raw, size

    def read(self, size: int = -1, /) -> bytes:
        data = self._raw.read(min(size, self._left) if size >= 0 else self._left)
        self._left -= len(data)
        return data


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Row groups of a Parquet file."""

    path: str
    reading: Reading
    groups: tuple[int, ...]
    size: int
    num_bytes: int

    @property
    def name(self) -> str:
        return self.reading.name

    def passages(self, settings: ReadSettings, counts: Counts) -> Iterator[Passage]:
        yield from read_row_groups(self.path, self.reading, self.groups, counts)


@dataclass(frozen=True, slots=True)
class DocsPart:
    """A part of the built-in corpus."""

    part: str
    size: int = PART_BYTES
    num_bytes: int = PART_BYTES

    @property
    def name(self) -> str:
        return self.part

    def passages(self, settings: ReadSettings, counts: Counts) -> Iterator[Passage]:
        yield from python_docs.read(self.part, counts=counts)
