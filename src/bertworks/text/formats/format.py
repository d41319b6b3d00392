"""The contract of a file format: FileChunk in, RawDocuments out; and where a file can be split between documents."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bertworks.text.chunks import FileChunk
from bertworks.text.compression import open_raw
from bertworks.text.document import Counts, RawDocument

# How far behind the desired split point a document boundary is searched. A longer document is split inside.
BOUNDARY_SEARCH_BYTES = 2**20


def no_preparation(head: bytes, chunk: FileChunk) -> FileChunk:
    """The `prepare` of formats that need nothing from the first bytes of a file."""
    return chunk


@dataclass(frozen=True, kw_only=True)
class Format:
    """A file format.

    read           parse a chunk with data into documents
    find_boundary  (data, start, chunk) -> the first index >= start between two documents, or None
    prepare        check the first bytes of a file and complete its chunk (such as the header of a CSV file)
    whole_records  a record is never split, so boundaries are searched beyond BOUNDARY_SEARCH_BYTES
    from_start     boundaries are only found when parsing from the start of a chunk, so the file must be streamed
    lines          the meaning of line breaks, one of LINE_MEANINGS
    """

    name: str
    extensions: tuple[str, ...]
    read: Callable[[FileChunk, Counts], Iterator[RawDocument]]
    find_boundary: Callable[[bytes, int, FileChunk], int | None]
    prepare: Callable[[bytes, FileChunk], FileChunk] = no_preparation
    whole_records: bool = False
    from_start: bool = False
    lines: str = "paragraphs"


def boundary_after(pattern: re.Pattern[bytes], data: bytes, start: int) -> int | None:
    """Return the end of the first match within BOUNDARY_SEARCH_BYTES."""
    match = pattern.search(data, start, start + BOUNDARY_SEARCH_BYTES)
    return match.end() if match else None


def record_end(data: bytes, start: int, chunk: FileChunk) -> int | None:
    """The `find_boundary` of formats with one record per line."""
    end = data.find(b"\n", start)
    return end + 1 if end >= 0 else None


def line_number(chunk: FileChunk, line: int) -> int:
    """Return the number in the file of a line of this chunk. For errors only: it may read the file up to the chunk."""
    if chunk.first_line:
        return chunk.first_line + line
    num_lines_before, remaining = 0, chunk.offset
    with open_raw(chunk.path, chunk.name) as file:
        while remaining and (data := file.read(min(remaining, BOUNDARY_SEARCH_BYTES))):
            num_lines_before += data.count(b"\n")
            remaining -= len(data)
    return num_lines_before + line + 1
