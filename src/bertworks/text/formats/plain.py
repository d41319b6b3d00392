"""Plain text in, one Passage a document out: an empty line ends a document, two of them where lines are wrapped."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bertworks.text.document import Counts, RawDocument
from bertworks.text.formats.format import FileChunk, FileSpec, Format, boundary_after

# In wrapped text an empty line only ends a paragraph (novels as Project Gutenberg sets them), and a chapter ends with
# two or more. If each paragraph were a document, it would have no next sentence to learn from.
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


def _find_boundary(data: bytes, at: int, spec: FileSpec) -> int | None:
    return boundary_after(_BOUNDARIES[spec.lines], data, at)


def _read(chunk: FileChunk, counts: Counts) -> Iterator[RawDocument]:
    text = chunk.text(counts)
    lines = chunk.spec.lines
    # A gap takes all empty lines behind it, so only the first document may have some before it.
    start = len(text) - len(text.lstrip())
    line = text.count("\n", 0, start)
    for gap in _GAPS[lines].finditer(text, start):
        yield RawDocument(text[start : gap.start()].strip(), chunk.location(line), lines)
        line += text.count("\n", start, gap.end())
        start = gap.end()
    if last := text[start:].strip():
        yield RawDocument(last, chunk.location(line), lines)


PLAIN = Format("plain", (".txt", ".text"), _read, _find_boundary)
