"""WikiText, a tokenized corpus: one document per article, detokenized."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bertworks.text.chunks import FileChunk
from bertworks.text.document import Counts, RawDocument
from bertworks.text.formats.format import Format, boundary_after

_ARTICLE_START = re.compile(rb"\n(?= = (?!= )[^\n]* = *\r?\n)")
_FIRST_LINE = re.compile(r"\s*?^ = (?!= )[^\n]* = *$", re.MULTILINE)
_TITLE = re.compile(r"\n = (?!= )([^\n]*) = *(?=\n)")
_HEADING = re.compile(r"\n = = [^\n]* = = *(?=\n)")

# An unknown word cannot be restored. Without it, words that are not neighbours would be ("The is blue"); "<unk>" or
# "[UNK]" would become three tokens and a word that no real text contains. A dash is what print uses for an omitted
# word; it is one token in every released vocabulary and does not end a sentence.
_UNKNOWN = "<unk>"
_OMISSION = "—"

_AT_MARK = re.compile(r" @([-,.])@ ")
# Quotes are paired within a line; an unpaired one keeps its spaces.
_QUOTED = re.compile(r'" (?<![^ \n(\[]" )([^"\n]*[^" \n])[ ]"(?![^ \n.,;:!?)\]])')
# All other spaces that tokenization inserted, in one pass: before closing marks and word endings, after opening marks,
# around the dash of "1914 – 18" and the slash of "and / or". Every word has a space after it, also the last of a line.
_INSERTED_SPACE = re.compile(
    r" (?:(?=[,.;:!?%)\]}”'n–/])(?:(?=(?:[,.;:!?%)\]}”]|\.\.\.|'(?:s|S|re|ve|ll|d|m)|n't)[ \"])"
    r"|(?<=\d )(?=– \d)|(?<=\w )(?=/ \w)|(?<=s )(?=' )|(?<=\bO )(?='[A-Z]))"
    r"|(?<=[(\[{“£$€¥–/] )(?:(?<=[^–/] )|(?<=\d – )(?=\d)|(?<=\w / )(?=\w)))"
)


def is_wikitext(text: str) -> bool:
    """Return whether the first non-empty line is the title of an article."""
    return _FIRST_LINE.match(text) is not None


def detokenize(text: str) -> str:
    """Undo the tokenization: "1 @,@ 000 ( one thousand ) , he 's" -> "1,000 (one thousand), he's"."""
    text = _QUOTED.sub(r'"\1"', _AT_MARK.sub(r"\1", text))
    return _INSERTED_SPACE.sub("", text)


def _find_boundary(data: bytes, start: int, chunk: FileChunk) -> int | None:
    return boundary_after(_ARTICLE_START, data, start)


def _read(chunk: FileChunk, counts: Counts) -> Iterator[RawDocument]:
    text, num_headings = _HEADING.subn("", f"\n{chunk.decode(counts)}\n")
    counts["headings dropped"] += num_headings
    counts["unknown words replaced by a dash"] += text.count(_UNKNOWN)
    text = detokenize(text.replace(_UNKNOWN, _OMISSION))
    parts = _TITLE.split(text)
    counts["headings dropped"] += len(parts) // 2
    titles = ["", *parts[1::2]]
    for number, (title, body) in enumerate(zip(titles, parts[::2], strict=True)):
        lines = [line for line in map(str.strip, body.split("\n")) if line]
        if lines:
            name = f"{chunk.name}#{title.strip()}" if number else chunk.location(0)
            yield RawDocument("\n".join(lines), name, chunk.lines)
        elif number:
            counts["documents dropped: only headings"] += 1


WIKITEXT = Format(name="wikitext", extensions=(), read=_read, find_boundary=_find_boundary)
