"""WikiText, which is cut into words, in; one Passage an article with natural spacing out."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bertworks.text.document import Counts, RawDocument
from bertworks.text.formats.format import FileChunk, FileSpec, Format, boundary_after

_ARTICLE_START = re.compile(rb"\n(?= = (?!= )[^\n]* = *\r?\n)")
_FIRST_LINE = re.compile(r"\s*?^ = (?!= )[^\n]* = *$", re.MULTILINE)
_TITLE = re.compile(r"\n = (?!= )([^\n]*) = *(?=\n)")
_HEADING = re.compile(r"\n = = [^\n]* = = *(?=\n)")

# An unknown word cannot be brought back. Leaving it out would join what does not belong together ("The is blue");
# "<unk>" or "[UNK]" would become three pieces and a word that no text contains. A dash is what print puts for a word
# left out; it is one piece in every released vocabulary and does not end a sentence.
_UNKNOWN = "<unk>"
_OMISSION = "—"

_AT_MARK = re.compile(r" @([-,.])@ ")
# Quotes are paired within a line; one that stays alone keeps its spaces.
_QUOTED = re.compile(r'" (?<![^ \n(\[]" )([^"\n]*[^" \n])[ ]"(?![^ \n.,;:!?)\]])')
# All other spaces that were put in, found in one pass: before closing marks and word endings, behind opening marks,
# around the dash of "1914 – 18" and the stroke of "and / or". Every word has a space behind it, also at a line's end.
_INSERTED_SPACE = re.compile(
    r" (?:(?=[,.;:!?%)\]}”'n–/])(?:(?=(?:[,.;:!?%)\]}”]|\.\.\.|'(?:s|S|re|ve|ll|d|m)|n't)[ \"])"
    r"|(?<=\d )(?=– \d)|(?<=\w )(?=/ \w)|(?<=s )(?=' )|(?<=\bO )(?='[A-Z]))"
    r"|(?<=[(\[{“£$€¥–/] )(?:(?<=[^–/] )|(?<=\d – )(?=\d)|(?<=\w / )(?=\w)))"
)


def is_wikitext(text: str) -> bool:
    """Whether the first line with anything on it is an article's title."""
    return _FIRST_LINE.match(text) is not None


def detokenize(text: str) -> str:
    """Undo the cutting into words: "1 @,@ 000 ( one thousand ) , he 's" -> "1,000 (one thousand), he's"."""
    text = _QUOTED.sub(r'"\1"', _AT_MARK.sub(r"\1", text))
    return _INSERTED_SPACE.sub("", text)


def _find_boundary(data: bytes, at: int, spec: FileSpec) -> int | None:
    return boundary_after(_ARTICLE_START, data, at)


def _read(chunk: FileChunk, counts: Counts) -> Iterator[RawDocument]:
    text, num_headings = _HEADING.subn("", f"\n{chunk.text(counts)}\n")
    counts["headings dropped"] += num_headings
    counts["unknown words replaced by a dash"] += text.count(_UNKNOWN)
    text = detokenize(text.replace(_UNKNOWN, _OMISSION))
    parts = _TITLE.split(text)
    counts["headings dropped"] += len(parts) // 2
    titles = ["", *parts[1::2]]
    for number, (title, body) in enumerate(zip(titles, parts[::2], strict=True)):
        lines = [line for line in map(str.strip, body.split("\n")) if line]
        if lines:
            name = f"{chunk.spec.name}#{title.strip()}" if number else chunk.location(0)
            yield RawDocument("\n".join(lines), name, chunk.spec.lines)
        elif number:
            counts["documents dropped: only headings"] += 1


WIKITEXT = Format("wikitext", (), _read, _find_boundary)
