"""Files in, a deterministic stream of Blocks out: what worker processes get, whatever their number."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO

from bertworks.text.archives import Member, is_archive, members
from bertworks.text.compression import ByteStream, compression_of, decompress, open_raw
from bertworks.text.decoding import HEAD_BYTES
from bertworks.text.files import File
from bertworks.text.formats import FORMATS
from bertworks.text.formats.format import FileChunk, FileSpec
from bertworks.text.formats.parquet import row_group_sizes
from bertworks.text.formats.wikipedia import PAGE_START
from bertworks.text.portions import (
    COMPRESSION_RATIO,
    Bz2Streams,
    FileRange,
    Payload,
    RowGroups,
    SkippedFile,
    TextPortion,
    WholeFile,
    skip_reason,
)
from bertworks.text.ranges import (
    ReadSettings,
    byte_ranges,
    detect_file_spec,
    format_by_name,
    read_chunks,
    read_chunks_as,
)

# The start of a bzip2 stream with its first block. Ten bytes do not turn up by chance.
_BZ2_START = re.compile(rb"BZh[1-9]1AY&SY")
_BZ2_READ_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of work: about `settings.block_bytes` of text, never of two sources.

    `number` counts over the whole run, `source` is the index of its source, `origin` names it for people, and
    `num_bytes` is what it takes from disk, for progress.
    """

    number: int
    source_index: int
    origin: str
    num_bytes: int
    portions: tuple[TextPortion, ...]
    settings: ReadSettings


def group_portions(portions: Iterable[TextPortion], block_bytes: int) -> Iterator[tuple[TextPortion, ...]]:
    """Group neighbours until they hold about a block of text."""
    group: list[TextPortion] = []
    size = 0
    for portion in portions:
        if group and size + portion.size > block_bytes:
            yield tuple(group)
            group, size = [], 0
        group.append(portion)
        size += portion.size
    if group:
        yield tuple(group)


def origin(portions: tuple[TextPortion, ...]) -> str:
    """A name for people: the first file, and how many more."""
    names = dict.fromkeys(portion.name for portion in portions)
    first = next(iter(names))
    return f"{first} and {len(names) - 1} more" if len(names) > 1 else first


def portions_of(file: File, settings: ReadSettings) -> Iterator[TextPortion]:
    """Cut one file into portions; the parent reads no more of it than it must."""
    if is_archive(file.name):
        for member in members(file):
            yield from _member_portions(member, settings)
    elif is_parquet(file.name, settings):
        yield from _row_groups(file, settings)
    elif file.size * (COMPRESSION_RATIO if compression_of(file.name) else 1) <= settings.block_bytes:
        yield WholeFile(file)
    else:
        yield from _large_file_portions(file, settings)


def is_parquet(name: str, settings: ReadSettings) -> bool:
    """Whether a file is read by row groups; Parquet has its own compression, so one packed again is refused later."""
    return format_by_name(name, settings) == "parquet" and not compression_of(name)


def stream_portions(stream: ByteStream, file: File, settings: ReadSettings) -> Iterator[TextPortion]:
    """Portions of standard input or a pipe, which can only be read once."""
    skip_reason(stream, file)
    for stretch in read_chunks(stream, settings):
        yield Payload(stretch, len(stretch.data))


def _member_portions(member: Member, settings: ReadSettings) -> Iterator[TextPortion]:
    if why := "archive inside an archive" if is_archive(member.file.name) else skip_reason(member.stream, member.file):
        yield SkippedFile(member.file.name, why, 0)
        return
    yield from _payloads(read_chunks(member.stream, settings), member.tell)


def _payloads(chunks: Iterator[FileChunk], tell: Callable[[], int]) -> Iterator[TextPortion]:
    """Payloads that know how far the file on disk was read for each."""
    read_before = 0
    for stretch in chunks:
        read = tell()
        yield Payload(stretch, max(0, read - read_before))
        read_before = read


def _large_file_portions(file: File, settings: ReadSettings) -> Iterator[TextPortion]:
    with open_raw(file.path, file.name) as raw:
        stream = decompress(raw, file.name)
        if why := skip_reason(stream, file):
            yield SkippedFile(file.name, why, file.size)
            return
        reading = detect_file_spec(stream.peek(HEAD_BYTES), file.name, settings)
        if compression_of(file.name) == ".bz2" and reading.format == "wikipedia" and _is_multistream(file):
            yield from _bz2_portions(file, reading, settings.block_bytes)
        elif compression_of(file.name) or stream.is_transcoded or FORMATS[reading.format].from_start:
            yield from _payloads(read_chunks_as(reading, stream, settings.block_bytes), raw.tell)
        else:
            yield from _range_portions(file, reading, stream.num_bom_bytes, settings.block_bytes)


def _range_portions(file: File, spec: FileSpec, num_bom_bytes: int, block_bytes: int) -> Iterator[TextPortion]:
    start = num_bom_bytes + len(spec.header)
    line = 1 + spec.header.count(b"\n")
    with open_raw(file.path, file.name) as raw:
        for one in byte_ranges(raw, start, spec, block_bytes):
            stretch = FileChunk(
                b"", spec, line, one.start, file.path, one.starts_inside_document, one.ends_inside_document
            )
            yield FileRange(file.path, stretch, one.end - one.start)
            line = 0  # lines are only known at the start: counting them would mean reading the file


def _row_groups(file: File, settings: ReadSettings) -> Iterator[TextPortion]:
    lines = settings.lines if settings.lines != "auto" else FORMATS["parquet"].lines
    reading = FileSpec(file.name, "parquet", settings.field, lines, "utf-8")
    for number, (on_disk, unpacked_size) in enumerate(row_group_sizes(file.path, reading)):
        yield RowGroups(file.path, reading, (number,), unpacked_size, on_disk)


def _bz2_starts(raw: IO[bytes], start: int, step: int) -> Iterator[int]:
    """Starts of bzip2 streams at least `step` bytes apart, behind the first one."""
    at, tail = start + step, b""
    raw.seek(at)
    while data := raw.read(_BZ2_READ_BYTES):
        # The end of the last look is looked at again: a start may lie across.
        found = _BZ2_START.search(tail + data)
        if found:
            at += found.start() - len(tail)
            yield at
            at, tail = at + step, b""
            raw.seek(at)
        else:
            at, tail = at + len(data), data[-9:]


def _is_multistream(file: File) -> bool:
    """Whether a dump's second bzip2 stream starts with a page, as Wikipedia's multi-stream dumps do.

    Parallel packers also write many streams, but cut anywhere; their files are read as one stream.
    """
    with open_raw(file.path, file.name) as raw:
        start = next(_bz2_starts(raw, 0, 1), None)
        if start is None:
            return False
        raw.seek(start)
        return decompress(raw, file.name).peek(2**10).lstrip().startswith(PAGE_START)


def _bz2_portions(file: File, spec: FileSpec, block_bytes: int) -> Iterator[TextPortion]:
    with open_raw(file.path, file.name) as raw:
        start = 0
        for end in _bz2_starts(raw, 0, max(1, block_bytes // COMPRESSION_RATIO)):
            yield Bz2Streams(file.path, spec, start, end - start)
            start = end
    yield Bz2Streams(file.path, spec, start, file.size - start)
