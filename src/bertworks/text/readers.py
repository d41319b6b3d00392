"""FileChunk in, its RawDocuments out, in a worker process: one function per kind of chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import IO, cast

from bertworks.errors import InputError
from bertworks.text import python_docs
from bertworks.text.chunks import FileChunk
from bertworks.text.compression import ByteStream, decompress, open_raw
from bertworks.text.decoding import HEAD_BYTES, non_text_reason
from bertworks.text.document import Counts, RawDocument
from bertworks.text.formats import FORMATS
from bertworks.text.formats.wikipedia import PAGE_START
from bertworks.text.splitting import ReadSettings, split_detected_stream, split_stream


def read_chunk(chunk: FileChunk, settings: ReadSettings, counts: Counts) -> Iterator[RawDocument]:
    """Yield the documents of a chunk in order. Whatever is skipped or replaced is added to `counts`."""
    return READERS[chunk.kind](chunk, settings, counts)


def skip_reason(stream: ByteStream, file: FileChunk) -> str:
    """Return why a file is skipped, "empty" or "not text", or "". An explicitly named empty file raises InputError."""
    stream.drop_byte_order_mark()
    head = stream.peek(HEAD_BYTES)
    if head and not file.is_explicit:
        return "not text" if non_text_reason(head) else ""
    if not head and file.is_explicit:
        raise InputError(f"{file.name} is empty; fill it or leave it out")
    return "" if head else "empty"


def _read_data(chunk: FileChunk, settings: ReadSettings, counts: Counts) -> Iterator[RawDocument]:
    """Bytes that are already in memory."""
    num_documents = 0
    for document in FORMATS[chunk.format].read(chunk, counts):
        num_documents += 1
        yield document
    # A document that fills a whole chunk was counted in the chunk where it starts.
    if chunk.ends_inside_document and not (chunk.starts_inside_document and num_documents == 1):
        counts["documents split: longer than a block"] += 1


def _read_file(chunk: FileChunk, settings: ReadSettings, counts: Counts) -> Iterator[RawDocument]:
    """A small file: decompressed and checked by the worker."""
    with open_raw(chunk.path, chunk.name) as raw:
        stream = decompress(raw, chunk.name)
        if reason := skip_reason(stream, chunk):
            counts[f"files skipped: {reason}"] += 1
            return
        for part in split_stream(chunk, stream, settings):
            yield from _read_data(part, settings, counts)


def _read_range(chunk: FileChunk, settings: ReadSettings, counts: Counts) -> Iterator[RawDocument]:
    """A byte range of a large uncompressed file."""
    with open_raw(chunk.path, chunk.name) as raw:
        raw.seek(chunk.offset)
        data = raw.read(chunk.num_bytes)
    if len(data) < chunk.num_bytes:
        raise InputError(f"{chunk.name} became shorter while it was read; start again when it no longer changes")
    yield from _read_data(replace(chunk, data=data), settings, counts)


def _read_bz2_streams(chunk: FileChunk, settings: ReadSettings, counts: Counts) -> Iterator[RawDocument]:
    """Whole streams of a multi-stream Wikipedia dump, each of which holds whole pages."""
    with open_raw(chunk.path, chunk.name) as raw:
        raw.seek(chunk.offset)
        stream = decompress(cast(IO[bytes], _BoundedReader(raw, chunk.num_bytes)), chunk.name)
        if chunk.offset and not stream.peek(HEAD_BYTES).lstrip().startswith((PAGE_START, b"</mediawiki>")):
            raise InputError(f"{chunk.name}: the stream at byte {chunk.offset} starts inside a page; recompress it")
        for part in split_detected_stream(chunk, stream, settings.block_bytes):
            yield from _read_data(part, settings, counts)


class _BoundedReader:
    """A file object that ends after the next `size` bytes of another one."""

    def __init__(self, raw: IO[bytes], size: int) -> None:
        self._raw, self._remaining = raw, size

    def read(self, size: int = -1, /) -> bytes:
        data = self._raw.read(min(size, self._remaining) if size >= 0 else self._remaining)
        self._remaining -= len(data)
        return data


def _read_row_group(chunk: FileChunk, settings: ReadSettings, counts: Counts) -> Iterator[RawDocument]:
    return FORMATS[chunk.format].read(chunk, counts)


def _read_python_docs(chunk: FileChunk, settings: ReadSettings, counts: Counts) -> Iterator[RawDocument]:
    return python_docs.read(chunk.name, counts=counts)


def _skip(chunk: FileChunk, settings: ReadSettings, counts: Counts) -> Iterator[RawDocument]:
    counts[f"files skipped: {chunk.skip_reason}"] += 1
    yield from ()


READERS: Mapping[str, Callable[[FileChunk, ReadSettings, Counts], Iterator[RawDocument]]] = {
    "file": _read_file,
    "range": _read_range,
    "data": _read_data,
    "bz2-streams": _read_bz2_streams,
    "row-group": _read_row_group,
    "python-docs": _read_python_docs,
    "skipped": _skip,
}
