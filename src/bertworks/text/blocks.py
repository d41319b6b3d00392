"""Files in, a deterministic stream of Blocks out: the units of work, independent of the number of workers."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import IO

from bertworks.text.archives import is_archive, members
from bertworks.text.chunks import FileChunk
from bertworks.text.compression import ByteStream, compression_of, decompress, open_raw
from bertworks.text.decoding import HEAD_BYTES
from bertworks.text.formats import FORMATS
from bertworks.text.formats.parquet import row_group_sizes
from bertworks.text.formats.wikipedia import PAGE_START
from bertworks.text.readers import skip_reason
from bertworks.text.splitting import (
    ReadSettings,
    detect_format,
    format_by_name,
    split_detected_stream,
    split_into_ranges,
    split_stream,
)

STANDARD_INPUT = "-"
COMPRESSION_RATIO = 3  # typical ratio of decompressed to compressed size of text
# The start of a bzip2 stream with its first block: ten bytes that do not occur by chance.
_BZ2_START = re.compile(rb"BZh[1-9]1AY&SY")
_BZ2_READ_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Block:
    """A unit of work: chunks of one source with about `settings.block_bytes` of text.

    `number` counts the blocks of all sources, `source_index` is the index of the source.
    """

    number: int
    source_index: int
    chunks: tuple[FileChunk, ...]
    settings: ReadSettings

    @property
    def num_bytes(self) -> int:
        """Size on disk, for progress."""
        return sum(chunk.num_bytes for chunk in self.chunks)

    @property
    def origin(self) -> str:
        """A name for messages: the first file and how many more."""
        names = dict.fromkeys(chunk.name for chunk in self.chunks)
        first = next(iter(names))
        return f"{first} and {len(names) - 1} more" if len(names) > 1 else first


def group_chunks(chunks: Iterable[FileChunk], block_bytes: int) -> Iterator[tuple[FileChunk, ...]]:
    """Group consecutive chunks until they hold about `block_bytes` of text."""
    group: list[FileChunk] = []
    size = 0
    for chunk in chunks:
        if group and size + chunk.text_bytes > block_bytes:
            yield tuple(group)
            group, size = [], 0
        group.append(chunk)
        size += chunk.text_bytes
    if group:
        yield tuple(group)


def split_file(file: FileChunk, settings: ReadSettings) -> Iterator[FileChunk]:
    """Split one listed file into chunks; the main process reads as little of it as possible."""
    if file.kind == "python-docs":
        yield file
    elif file.kind == "pipe":
        yield from _pipe_chunks(file, settings)
    elif is_archive(file.name):
        for member, stream, tell in members(file):
            yield from _member_chunks(member, stream, tell, settings)
    elif is_parquet(file.name, settings):
        yield from _row_group_chunks(file, settings)
    else:
        text_bytes = file.num_bytes * (COMPRESSION_RATIO if compression_of(file.name) else 1)
        if text_bytes <= settings.block_bytes:
            yield replace(file, text_bytes=text_bytes)
        else:
            yield from _large_file_chunks(file, settings)


def is_parquet(name: str, settings: ReadSettings) -> bool:
    """Return whether a file is read by row groups. Parquet inside another compression is rejected later."""
    return format_by_name(name, settings) == "parquet" and not compression_of(name)


def _pipe_chunks(pipe: FileChunk, settings: ReadSettings) -> Iterator[FileChunk]:
    """Standard input or a named pipe, which can only be read once."""
    if pipe.path == STANDARD_INPUT:
        yield from _piped_stream_chunks(ByteStream(sys.stdin.buffer, pipe.name), pipe, settings)
        return
    with open_raw(pipe.path, pipe.name) as raw:
        yield from _piped_stream_chunks(ByteStream(raw, pipe.name), pipe, settings)


def _piped_stream_chunks(stream: ByteStream, pipe: FileChunk, settings: ReadSettings) -> Iterator[FileChunk]:
    skip_reason(stream, pipe)
    for chunk in split_stream(pipe, stream, settings):
        yield replace(chunk, num_bytes=len(chunk.data), text_bytes=len(chunk.data))


def _member_chunks(
    member: FileChunk, stream: ByteStream, tell: Callable[[], int], settings: ReadSettings
) -> Iterator[FileChunk]:
    reason = "archive inside an archive" if is_archive(member.name) else skip_reason(stream, member)
    if reason:
        yield replace(member, kind="skipped", skip_reason=reason, num_bytes=0)
        return
    yield from _with_sizes(split_stream(member, stream, settings), tell)


def _with_sizes(chunks: Iterator[FileChunk], tell: Callable[[], int]) -> Iterator[FileChunk]:
    """Add the sizes of chunks with data: `num_bytes` is how far `tell` of the file on disk advanced for each."""
    end_before = 0
    for chunk in chunks:
        end = tell()
        yield replace(chunk, num_bytes=max(0, end - end_before), text_bytes=len(chunk.data))
        end_before = end


def _large_file_chunks(file: FileChunk, settings: ReadSettings) -> Iterator[FileChunk]:
    with open_raw(file.path, file.name) as raw:
        stream = decompress(raw, file.name)
        if reason := skip_reason(stream, file):
            yield replace(file, kind="skipped", skip_reason=reason)
            return
        chunk = detect_format(stream.peek(HEAD_BYTES), file, settings)
        if compression_of(file.name) == ".bz2" and chunk.format == "wikipedia" and _is_multistream(file):
            yield from _bz2_chunks(chunk, settings.block_bytes)
        elif compression_of(file.name) or stream.is_transcoded or FORMATS[chunk.format].from_start:
            yield from _with_sizes(split_detected_stream(chunk, stream, settings.block_bytes), raw.tell)
        else:
            start = stream.num_bom_bytes + len(chunk.header)
            with open_raw(file.path, file.name) as ranges:
                yield from split_into_ranges(ranges, start, chunk, settings.block_bytes)


def _row_group_chunks(file: FileChunk, settings: ReadSettings) -> Iterator[FileChunk]:
    lines = settings.lines if settings.lines != "auto" else FORMATS["parquet"].lines
    chunk = replace(file, kind="row-group", format="parquet", field=settings.field, lines=lines, encoding="utf-8")
    for number, (num_bytes, text_bytes) in enumerate(row_group_sizes(chunk)):
        yield replace(chunk, row_group=number, num_bytes=num_bytes, text_bytes=text_bytes)


def _bz2_starts(raw: IO[bytes], start: int, step: int) -> Iterator[int]:
    """Yield starts of bzip2 streams at least `step` bytes apart, after the first one."""
    position, tail = start + step, b""
    raw.seek(position)
    while data := raw.read(_BZ2_READ_BYTES):
        # A start may lie across two reads, so the end of the previous one is searched again.
        match = _BZ2_START.search(tail + data)
        if match:
            position += match.start() - len(tail)
            yield position
            position, tail = position + step, b""
            raw.seek(position)
        else:
            position, tail = position + len(data), data[-9:]


def _is_multistream(file: FileChunk) -> bool:
    """Return whether the second bzip2 stream of a dump starts with a page, as in Wikipedia's multi-stream dumps.

    Parallel compressors also write many streams, but split anywhere; their files are read as one stream.
    """
    with open_raw(file.path, file.name) as raw:
        start = next(_bz2_starts(raw, 0, 1), None)
        if start is None:
            return False
        raw.seek(start)
        return decompress(raw, file.name).peek(2**10).lstrip().startswith(PAGE_START)


def _bz2_chunks(file: FileChunk, block_bytes: int) -> Iterator[FileChunk]:
    start = 0
    with open_raw(file.path, file.name) as raw:
        for end in _bz2_starts(raw, 0, max(1, block_bytes // COMPRESSION_RATIO)):
            yield _bz2_chunk(file, start, end)
            start = end
    yield _bz2_chunk(file, start, file.num_bytes)


def _bz2_chunk(file: FileChunk, start: int, end: int) -> FileChunk:
    size = end - start
    return replace(file, kind="bz2-streams", offset=start, num_bytes=size, text_bytes=size * COMPRESSION_RATIO)
