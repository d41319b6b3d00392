"""What every format answers: Stretch of bytes in, Passages out, and where a file may be cut between documents."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from bertworks.text.compression import open_raw
from bertworks.text.decoding import decode
from bertworks.text.document import Counts, RawDocument

# How far behind a wished cut a document boundary is looked for. A document that runs on beyond it is cut inside.
BOUNDARY_SEARCH_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class FileSpec:
    """How one file is to be read: decided once from its first bytes, the same for all of its blocks.

    `header` is the first record of a CSV or TSV file, with its line end; it is not part of any stretch.
    """

    name: str
    format: str
    field: str
    lines: str
    encoding: str
    header: bytes = b""


@dataclass(frozen=True, slots=True)
class FileChunk:
    """The bytes of one file between two cuts.

    `first_line` is the number of its first line, or 0 when the lines before it were never counted; then `offset`, its
    first byte in the file, names the place, and `path` lets an error count the lines after all.
    """

    data: bytes
    spec: FileSpec
    first_line: int = 1
    offset: int = 0
    path: str = ""
    starts_inside_document: bool = False
    ends_inside_document: bool = False

    def with_data(self, data: bytes) -> FileChunk:
        """The same stretch with its bytes."""
        return replace(self, data=data)

    def text(self, counts: Counts) -> str:
        """The decoded text, every line end a newline."""
        return decode(self.data, self.spec.encoding, self.spec.name, counts)

    def location(self, line: int) -> str:
        """Name a line of this stretch (counted from 0) for people: "notes.txt:3041".

        Where the lines before the stretch were not counted it is "notes.txt@4194304:17", line 17 after that byte.
        """
        if self.first_line:
            return f"{self.spec.name}:{self.first_line + line}"
        return f"{self.spec.name}@{self.offset}:{line + 1}"

    def line_number(self, line: int) -> int:
        """The number in the file of a line of this stretch; for errors only, since it may read all before it."""
        if self.first_line:
            return self.first_line + line
        num_before, left = 0, self.offset
        with open_raw(self.path, self.spec.name) as file:
            while left and (data := file.read(min(left, BOUNDARY_SEARCH_BYTES))):
                num_before += data.count(b"\n")
                left -= len(data)
        return num_before + line + 1


def identity_prepare(head: bytes, spec: FileSpec) -> FileSpec:
    """The preparation of formats that need nothing from the first bytes."""
    return spec


@dataclass(frozen=True)
class Format:
    """One way of writing documents into a file.

    `find_boundary(data, at, reading)` gives the first place at or behind `at` where one document ends and the next
    starts. `whole_records`: a record can never be cut inside, so a boundary is looked for beyond the window too.
    `from_start`: a boundary is only found when reading from the start of the stretch, so the file must be streamed.
    `prepare` checks the first bytes of a file and completes its Reading.
    """

    name: str
    extensions: tuple[str, ...]
    read: Callable[[FileChunk, Counts], Iterator[RawDocument]]
    find_boundary: Callable[[bytes, int, FileSpec], int | None]
    prepare: Callable[[bytes, FileSpec], FileSpec] = identity_prepare
    whole_records: bool = False
    from_start: bool = False
    lines: str = "paragraphs"


def boundary_after(pattern: re.Pattern[bytes], data: bytes, at: int) -> int | None:
    """The end of the first match within the window."""
    match = pattern.search(data, at, at + BOUNDARY_SEARCH_BYTES)
    return match.end() if match else None


def record_end(data: bytes, at: int, spec: FileSpec) -> int | None:
    """The boundary of formats with one record a line."""
    end = data.find(b"\n", at)
    return end + 1 if end >= 0 else None
