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
from bertworks.text.decoding import HEAD_BYTES, decode, detect_encoding, whole_characters, why_not_text
from bertworks.text.document import LINE_MEANINGS, Counts
from bertworks.text.formats import FORMATS
from bertworks.text.formats.format import WINDOW, Reading, Stretch
from bertworks.text.formats.json_lines import JSON_LINES, is_json_lines
from bertworks.text.formats.wikitext import is_wikitext
from bertworks.text.line_breaks import SAMPLE_CHARACTERS, line_meaning

# A record (a JSON line, a CSV row, a wiki page) cannot be cut inside. A longer one would not fit the promised memory.
LARGEST_RECORD = 64 * 2**20
_FIRST_LOOK = 2**16

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


def decide(head: bytes, name: str, settings: ReadSettings) -> Reading:
    """Decide from a file's name and first bytes how to read all of it; refuse what cannot be read."""
    if what := why_not_text(head):
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
    return FORMATS[format_name].prepare(head, Reading(name, format_name, settings.field, lines, encoding))


def _cut_inside(data: bytes, at: int, encoding: str) -> int | None:
    """Where to cut inside a document: behind a paragraph, a line, a sentence or a word; None when there is no such."""
    patterns = [_PARAGRAPH_END, re.compile(b"\n"), _WHITE_SPACE]
    if encoding == "utf-8":
        patterns.insert(2, _SENTENCE_END)
    for pattern in patterns:
        if match := pattern.search(data, at, at + WINDOW):
            return match.end()
    return None


def stretches(stream: ByteStream, settings: ReadSettings) -> Iterator[Stretch]:
    """Cut a stream of unpacked bytes whose byte order mark is gone."""
    reading = decide(stream.peek(HEAD_BYTES), stream.name, settings)
    yield from stretches_as(reading, stream, settings.block_bytes)


def stretches_as(reading: Reading, stream: ByteStream, block_bytes: int) -> Iterator[Stretch]:
    """Cut a stream that is read in a known way. Never more than a block, the window and one long record in memory."""
    line = 1 + stream.read(len(reading.header)).count(b"\n")
    looked, cut_before = block_bytes + WINDOW, False
    while data := stream.peek(looked):
        cut, clean = len(data), True
        if len(data) > block_bytes:
            cut, clean = _cut(data, block_bytes, reading, at_end=len(data) < looked)
        if not cut:
            if looked > LARGEST_RECORD:
                raise InputError(_too_long(reading.name, f"line {line}"))
            looked *= 2
            continue
        data = stream.read(cut)
        yield Stretch(data, reading, line, cut_before=cut_before, cut_after=not clean)
        line += data.count(b"\n")
        looked, cut_before = block_bytes + WINDOW, not clean


def _too_long(name: str, where: str) -> str:
    return f"{name}, {where}: one record is longer than {LARGEST_RECORD // 2**20} MiB; split it, or check its quotes"


def _cut(data: bytes, at: int, reading: Reading, at_end: bool) -> tuple[int, bool]:
    """Where to cut data that starts at a cut, and whether that is between documents; 0 when a record must go on."""
    found = FORMATS[reading.format].find_boundary(data, at, reading)
    if found is not None:
        return found, True
    if at_end:
        return len(data), True
    if FORMATS[reading.format].whole_records:
        return 0, True
    inside = _cut_inside(data, at, reading.encoding)
    return inside or whole_characters(data[:at], reading.encoding) or at, False


class Range(NamedTuple):
    """Bytes of an uncompressed file between two cuts."""

    start: int
    end: int
    cut_before: bool
    cut_after: bool


def ranges(file: IO[bytes], start: int, reading: Reading, block_bytes: int) -> Iterator[Range]:
    """Cut a file from a byte on, by looking only at a window behind each wished cut."""
    size = file.seek(0, SEEK_END)
    cut_before = False
    while start < size:
        end, clean = size, True
        if size - start > block_bytes:
            end, clean = _range_end(file, start, reading, block_bytes)
        yield Range(start, end, cut_before, not clean)
        start, cut_before = end, not clean


def _range_end(file: IO[bytes], start: int, reading: Reading, block_bytes: int) -> tuple[int, bool]:
    at = start + block_bytes
    one = FORMATS[reading.format]
    looked = _FIRST_LOOK
    while looked <= (2 * LARGEST_RECORD if one.whole_records else WINDOW):
        file.seek(at)
        data = file.read(looked)
        found = one.find_boundary(data, 0, reading)
        if found is not None or len(data) < looked:
            return at + (len(data) if found is None else found), True
        looked *= 4
    if one.whole_records:
        raise InputError(_too_long(reading.name, f"near byte {at}"))
    inside = _cut_inside(data, 0, reading.encoding)
    if inside is not None:
        return at + inside, False
    file.seek(start)
    return start + (whole_characters(file.read(block_bytes), reading.encoding) or block_bytes), False
