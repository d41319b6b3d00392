"""A file's bytes in, Stretches of about a block out, cut between documents; a longer document is cut inside."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from os import SEEK_END
from pathlib import PurePath
from typing import IO, NamedTuple

from bertworks.errors import InputError, SettingsError
from bertworks.text.compression import ByteStream, compression_of
from bertworks.text.decoding import HEAD_BYTES, complete_characters_length, decode, detect_encoding, non_text_reason
from bertworks.text.document import LINE_MEANINGS, Counts
from bertworks.text.formats import FORMATS
from bertworks.text.formats.format import BOUNDARY_SEARCH_BYTES, FileChunk, FileSpec
from bertworks.text.formats.json_lines import JSON_LINES, is_json_lines
from bertworks.text.formats.wikitext import is_wikitext
from bertworks.text.line_breaks import SAMPLE_CHARACTERS, line_meaning

# A record (a JSON line, a CSV row, a wiki page) cannot be cut inside. A longer one would not fit the promised memory.
MAX_RECORD_BYTES = 64 * 2**20
_FIRST_WINDOW_BYTES = 2**16

_PARAGRAPH_END = re.compile(rb"\n[ \t\r]*\n")
# Chinese full stops are multi-byte: only in UTF-8 can they be told from the halves of two neighbours.
_SENTENCE_END = re.compile(rb"[.!?][\"')\]]*[ \t]+|\xe3\x80\x82|\xef\xbc\x81|\xef\xbc\x9f")
_WHITE_SPACE = re.compile(rb"[ \t\r\f\v]")

_EXTENSIONS = {extension: one.name for one in FORMATS.values() for extension in one.extensions}


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How sources are read. `field` names the JSON field or the column that holds the text.

    `block_bytes` is about how much text a block holds: blocks are what worker processes get one by one.
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
            raise SettingsError(f"block_bytes is {self.block_bytes}; give a positive number of bytes")


def format_by_name(name: str, settings: ReadSettings) -> str:
    """The format of a file by its extension, without the one of its compression; plain text if unknown."""
    if settings.format != "auto":
        return settings.format
    bare = name.removesuffix(compression_of(name)) if compression_of(name) else name
    return _EXTENSIONS.get(PurePath(bare).suffix.lower(), "plain")


def detect_file_spec(head: bytes, name: str, settings: ReadSettings) -> FileSpec:
    """Decide from a file's name and first bytes how to read all of it; refuse what cannot be read."""
    if what := non_text_reason(head):
        raise InputError(f"{name} is {what}")
    encoding = detect_encoding(head)
    format_name = format_by_name(name, settings)
    lines = FORMATS[format_name].lines
    if format_name == "plain":
        sample = decode(head[: 4 * SAMPLE_CHARACTERS], encoding, name, Counts())
        if settings.format == "auto" and is_wikitext(sample):
            format_name = "wikitext"
        elif settings.format == "auto" and is_json_lines(sample):  # standard input has no name to tell it by
            format_name, lines = JSON_LINES.name, JSON_LINES.lines
        elif settings.lines == "auto":
            lines = line_meaning(sample)
    if settings.lines != "auto":
        lines = settings.lines
    return FORMATS[format_name].prepare(head, FileSpec(name, format_name, settings.field, lines, encoding))


def _find_cut_inside(data: bytes, at: int, encoding: str) -> int | None:
    """Where to cut inside a document: behind a paragraph, a line, a sentence or a word; None when there is no such."""
    patterns = [_PARAGRAPH_END, re.compile(b"\n"), _WHITE_SPACE]
    if encoding == "utf-8":
        patterns.insert(2, _SENTENCE_END)
    for pattern in patterns:
        if match := pattern.search(data, at, at + BOUNDARY_SEARCH_BYTES):
            return match.end()
    return None


def read_chunks(stream: ByteStream, settings: ReadSettings) -> Iterator[FileChunk]:
    """Cut a stream of unpacked bytes whose byte order mark is gone."""
    reading = detect_file_spec(stream.peek(HEAD_BYTES), stream.name, settings)
    yield from read_chunks_as(reading, stream, settings.block_bytes)


def read_chunks_as(spec: FileSpec, stream: ByteStream, block_bytes: int) -> Iterator[FileChunk]:
    """Cut a stream that is read in a known way. Never more than a block, the window and one long record in memory."""
    line = 1 + stream.read(len(spec.header)).count(b"\n")
    looked, cut_before = block_bytes + BOUNDARY_SEARCH_BYTES, False
    while data := stream.peek(looked):
        cut, clean = len(data), True
        if len(data) > block_bytes:
            cut, clean = _find_cut(data, block_bytes, spec, at_end=len(data) < looked)
        if not cut:
            if looked > MAX_RECORD_BYTES:
                raise InputError(_too_long_message(spec.name, f"line {line}"))
            looked *= 2
            continue
        data = stream.read(cut)
        yield FileChunk(data, spec, line, starts_inside_document=cut_before, ends_inside_document=not clean)
        line += data.count(b"\n")
        looked, cut_before = block_bytes + BOUNDARY_SEARCH_BYTES, not clean


def _too_long_message(name: str, location: str) -> str:
    return (
        f"{name}, {location}: one record is longer than {MAX_RECORD_BYTES // 2**20} MiB; split it, or check its quotes"
    )


def _find_cut(data: bytes, at: int, spec: FileSpec, at_end: bool) -> tuple[int, bool]:
    """Where to cut data that starts at a cut, and whether that is between documents; 0 when a record must go on."""
    found = FORMATS[spec.format].find_boundary(data, at, spec)
    if found is not None:
        return found, True
    if at_end:
        return len(data), True
    if FORMATS[spec.format].whole_records:
        return 0, True
    inside = _find_cut_inside(data, at, spec.encoding)
    return inside or complete_characters_length(data[:at], spec.encoding) or at, False


class ByteRange(NamedTuple):
    """Bytes of an uncompressed file between two cuts."""

    start: int
    end: int
    starts_inside_document: bool
    ends_inside_document: bool


def byte_ranges(file: IO[bytes], start: int, spec: FileSpec, block_bytes: int) -> Iterator[ByteRange]:
    """Cut a file from a byte on, by looking only at a window behind each wished cut."""
    size = file.seek(0, SEEK_END)
    cut_before = False
    while start < size:
        end, clean = size, True
        if size - start > block_bytes:
            end, clean = _range_end(file, start, spec, block_bytes)
        yield ByteRange(start, end, cut_before, not clean)
        start, cut_before = end, not clean


def _range_end(file: IO[bytes], start: int, spec: FileSpec, block_bytes: int) -> tuple[int, bool]:
    at = start + block_bytes
    one = FORMATS[spec.format]
    looked = _FIRST_WINDOW_BYTES
    while looked <= (2 * MAX_RECORD_BYTES if one.whole_records else BOUNDARY_SEARCH_BYTES):
        file.seek(at)
        data = file.read(looked)
        found = one.find_boundary(data, 0, spec)
        if found is not None or len(data) < looked:
            return at + (len(data) if found is None else found), True
        looked *= 4
    if one.whole_records:
        raise InputError(_too_long_message(spec.name, f"near byte {at}"))
    inside = _find_cut_inside(data, 0, spec.encoding)
    if inside is not None:
        return at + inside, False
    file.seek(start)
    return start + (complete_characters_length(file.read(block_bytes), spec.encoding) or block_bytes), False
