"""The bytes of a file in, FileChunks of about one block out, split between documents wherever possible."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from os import SEEK_END
from pathlib import PurePath
from typing import IO

from bertworks.errors import InputError, SettingsError
from bertworks.text.chunks import FileChunk
from bertworks.text.compression import ByteStream, compression_of
from bertworks.text.decoding import HEAD_BYTES, complete_characters_length, decode, detect_encoding, non_text_reason
from bertworks.text.document import LINE_MEANINGS, Counts
from bertworks.text.formats import FORMATS
from bertworks.text.formats.format import BOUNDARY_SEARCH_BYTES
from bertworks.text.formats.json_lines import JSON_LINES, is_json_lines
from bertworks.text.formats.wikitext import is_wikitext
from bertworks.text.line_breaks import SAMPLE_CHARACTERS, line_meaning

# A record (a JSON line, a CSV row, a wiki page) is never split. Longer ones are rejected to bound the memory.
MAX_RECORD_BYTES = 64 * 2**20
_FIRST_WINDOW_BYTES = 2**16

_PARAGRAPH_END = re.compile(rb"\n[ \t\r]*\n")
# Chinese full stops are multi-byte: only in UTF-8 do their bytes never occur across two neighbouring characters.
_SENTENCE_END = re.compile(rb"[.!?][\"')\]]*[ \t]+|\xe3\x80\x82|\xef\xbc\x81|\xef\xbc\x9f")
_WHITE_SPACE = re.compile(rb"[ \t\r\f\v]")

_EXTENSIONS = {extension: format_.name for format_ in FORMATS.values() for extension in format_.extensions}


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How sources are read.

    format       a key of FORMATS, or "auto": by file name and content
    field        the JSON field or the column that holds the text
    lines        the meaning of line breaks, one of LINE_MEANINGS, or "auto": by format and content
    block_bytes  approximate amount of text in a block, the unit of work of a worker process
    """

    format: str = "auto"
    field: str = "text"
    lines: str = "auto"
    block_bytes: int = 4 * 2**20

    def __post_init__(self) -> None:
        if self.format != "auto" and self.format not in FORMATS:
            raise SettingsError(f"unknown format {self.format!r}; choose auto, {', '.join(FORMATS)}")
        if self.lines not in ("auto", *LINE_MEANINGS):
            raise SettingsError(f"unknown meaning of lines {self.lines!r}; choose auto, {', '.join(LINE_MEANINGS)}")
        if self.block_bytes < 1:
            raise SettingsError(f"block_bytes = {self.block_bytes}: must be positive")


def format_by_name(name: str, settings: ReadSettings) -> str:
    """Return the format of a file by its extension (a compression suffix is ignored); plain text if unknown."""
    if settings.format != "auto":
        return settings.format
    stem = name.removesuffix(compression_of(name)) if compression_of(name) else name
    return _EXTENSIONS.get(PurePath(stem).suffix.lower(), "plain")


def detect_format(head: bytes, chunk: FileChunk, settings: ReadSettings) -> FileChunk:
    """Detect from the name and the first bytes of a file how to parse it; raise InputError if it cannot be read."""
    if reason := non_text_reason(head):
        raise InputError(f"{chunk.name} is {reason}")
    encoding = detect_encoding(head)
    format_name = format_by_name(chunk.name, settings)
    lines = FORMATS[format_name].lines
    if format_name == "plain":
        sample = decode(head[: 4 * SAMPLE_CHARACTERS], encoding, chunk.name, Counts())
        if settings.format == "auto" and is_wikitext(sample):
            format_name = "wikitext"
        elif settings.format == "auto" and is_json_lines(sample):  # standard input has no file extension
            format_name, lines = JSON_LINES.name, JSON_LINES.lines
        elif settings.lines == "auto":
            lines = line_meaning(sample)
    if settings.lines != "auto":
        lines = settings.lines
    chunk = replace(chunk, format=format_name, field=settings.field, lines=lines, encoding=encoding)
    return FORMATS[format_name].prepare(head, chunk)


def split_stream(chunk: FileChunk, stream: ByteStream, settings: ReadSettings) -> Iterator[FileChunk]:
    """Detect the format of a stream (decompressed, without byte order mark) and split it into chunks with data."""
    detected = detect_format(stream.peek(HEAD_BYTES), chunk, settings)
    yield from split_detected_stream(detected, stream, settings.block_bytes)


def split_detected_stream(chunk: FileChunk, stream: ByteStream, block_bytes: int) -> Iterator[FileChunk]:
    """Split a stream of known format. At most a block, the search window and one long record are in memory."""
    line = 1 + stream.read(len(chunk.header)).count(b"\n")
    window, starts_inside = block_bytes + BOUNDARY_SEARCH_BYTES, False
    while data := stream.peek(window):
        end, is_boundary = len(data), True
        if len(data) > block_bytes:
            end, is_boundary = _find_split(data, block_bytes, chunk, at_end=len(data) < window)
        if not end:
            if window > MAX_RECORD_BYTES:
                raise InputError(_record_too_long(chunk.name, f"line {line}"))
            window *= 2
            continue
        data = stream.read(end)
        yield replace(
            chunk,
            kind="data",
            data=data,
            first_line=line,
            starts_inside_document=starts_inside,
            ends_inside_document=not is_boundary,
        )
        line += data.count(b"\n")
        window, starts_inside = block_bytes + BOUNDARY_SEARCH_BYTES, not is_boundary


def split_into_ranges(file: IO[bytes], start: int, chunk: FileChunk, block_bytes: int) -> Iterator[FileChunk]:
    """Split an uncompressed file into byte ranges; only a window behind each desired split point is read."""
    size = file.seek(0, SEEK_END)
    starts_inside = False
    first_line = 1 + chunk.header.count(b"\n")
    while start < size:
        end, is_boundary = size, True
        if size - start > block_bytes:
            end, is_boundary = _range_end(file, start, chunk, block_bytes)
        yield replace(
            chunk,
            kind="range",
            num_bytes=end - start,
            text_bytes=end - start,
            offset=start,
            first_line=first_line,
            starts_inside_document=starts_inside,
            ends_inside_document=not is_boundary,
        )
        start, starts_inside = end, not is_boundary
        first_line = 0  # counting the lines of later ranges would mean reading the whole file


def _record_too_long(name: str, location: str) -> str:
    return (
        f"{name}, {location}: one record is longer than {MAX_RECORD_BYTES // 2**20} MiB; split it, or check its quotes"
    )


def _find_split(data: bytes, start: int, chunk: FileChunk, at_end: bool) -> tuple[int, bool]:
    """Return where to split the data and whether that is between documents; 0 if the record needs more data."""
    file_format = FORMATS[chunk.format]
    boundary = file_format.find_boundary(data, start, chunk)
    if boundary is not None:
        return boundary, True
    if at_end:
        return len(data), True
    if file_format.whole_records:
        return 0, True
    inside = _find_split_inside(data, start, chunk.encoding)
    return inside or complete_characters_length(data[:start], chunk.encoding) or start, False


def _find_split_inside(data: bytes, start: int, encoding: str) -> int | None:
    """Return where to split inside a document: after a paragraph, a line, a sentence or a word; None if nowhere."""
    patterns = [_PARAGRAPH_END, re.compile(b"\n"), _WHITE_SPACE]
    if encoding == "utf-8":
        patterns.insert(2, _SENTENCE_END)
    for pattern in patterns:
        if match := pattern.search(data, start, start + BOUNDARY_SEARCH_BYTES):
            return match.end()
    return None


def _range_end(file: IO[bytes], start: int, chunk: FileChunk, block_bytes: int) -> tuple[int, bool]:
    """Return the end of the range that begins at `start` and whether it is between documents."""
    target = start + block_bytes
    file_format = FORMATS[chunk.format]
    window = _FIRST_WINDOW_BYTES
    while window <= (2 * MAX_RECORD_BYTES if file_format.whole_records else BOUNDARY_SEARCH_BYTES):
        file.seek(target)
        data = file.read(window)
        boundary = file_format.find_boundary(data, 0, chunk)
        if boundary is not None or len(data) < window:
            return target + (len(data) if boundary is None else boundary), True
        window *= 4
    if file_format.whole_records:
        raise InputError(_record_too_long(chunk.name, f"near byte {target}"))
    inside = _find_split_inside(data, 0, chunk.encoding)
    if inside is not None:
        return target + inside, False
    file.seek(start)
    return start + (complete_characters_length(file.read(block_bytes), chunk.encoding) or block_bytes), False
