"""Plain text: documents are separated by an empty line, or by two of them if lines are hard-wrapped."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bertworks.text.chunks import FileChunk
from bertworks.text.document import Counts, RawDocument
from bertworks.text.formats.format import Format, boundary_after

# In hard-wrapped text an empty line only ends a paragraph (as in the novels of Project Gutenberg), and a chapter ends
# with two or more. If each paragraph were a document, there would be too few sentences for next-sentence pairs.
_BOUNDARIES = {
    "sentences": re.compile(rb"\n[ \t\r]*\n"),
    "paragraphs": re.compile(rb"\n[ \t\r]*\n"),
    "wrapped": re.compile(rb"\n[ \t\r]*\n[ \t\r]*\n"),
}
_GAPS = {
    "sentences": re.compile(r"\n\s*\n"),
    "paragraphs": re.compile(r"\n\s*\n"),
    "wrapped": re.compile(r"\n[^\S\n]*\n\s*\n"),
}


def _find_boundary(data: bytes, start: int, chunk: FileChunk) -> int | None:
    return boundary_after(_BOUNDARIES[chunk.lines], data, start)


def _read(chunk: FileChunk, counts: Counts) -> Iterator[RawDocument]:
    text = chunk.decode(counts)
    lines = chunk.lines
    # A gap includes all empty lines, so only the first document can have some before it.
    start = len(text) - len(text.lstrip())
    line = text.count("\n", 0, start)
    for gap in _GAPS[lines].finditer(text, start):
        yield RawDocument(text[start : gap.start()].strip(), chunk.location(line), lines)
        line += text.count("\n", start, gap.end())
        start = gap.end()
    if last := text[start:].strip():
        yield RawDocument(last, chunk.location(line), lines)


PLAIN = Format(name="plain", extensions=(".txt", ".text"), read=_read, find_boundary=_find_boundary)
