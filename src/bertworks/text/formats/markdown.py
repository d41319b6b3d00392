"""Markdown: one document per file, its running text without markup, code, tables and headings."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator

from bertworks.text.chunks import FileChunk
from bertworks.text.document import Counts, RawDocument
from bertworks.text.formats.format import Format

# Every pattern starts with a literal character (the start of a line is the newline before it), so that the regex
# engine skips quickly to its occurrences.
_FRONT_MATTER = re.compile(
    r"\s*(?:---[ \t]*\n(?=[\w-]+[ \t]*:).*?\n(?:---|\.\.\.)|\+\+\+[ \t]*\n.*?\n\+\+\+)[ \t]*(?=\n)", re.S
)

# What is dropped including its text: a guard character, the pattern, and its name in Counts.
_DROP_PATTERNS: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("<", re.compile(r"<!--.*?(?:-->|\Z)", re.S), "HTML comments dropped"),
    (
        "`",
        re.compile(r"\n {0,3}(`{3,})[^`\n]*(?=\n)(?:.*?\n {0,3}\1`*[ \t]*(?=\n)|.*\Z)", re.S),
        "code blocks dropped",
    ),
    (
        "~",
        re.compile(r"\n {0,3}(~{3,})[^\n]*(?=\n)(?:.*?\n {0,3}\1~*[ \t]*(?=\n)|.*\Z)", re.S),
        "code blocks dropped",
    ),
    (
        "|",
        re.compile(
            r"\n[^\n|]*+\|[^\n]*+\n[ \t>]*\|?(?:[ \t]*:?-+:?[ \t]*\|)+(?:[ \t]*:?-+:?)?[ \t]*(?=\n)"
            r"(?:\n[^\n|]*+\|[^\n]*+)*"
        ),
        "tables dropped",
    ),
    ("[", re.compile(r"\n {0,3}\[[^\]\n]+\]:[ \t]+\S[^\n]*"), "link targets dropped"),
)
_UNDERLINE = re.compile(r"\n(?:={2,}|-{2,})[ \t]*(?=\n)")
# At the start of a line: a heading, a horizontal rule, block quote marks, a list item.
_LINE_MARK = re.compile(
    r"\n[ \t]*(?:(?P<heading>#{1,6}(?=\s)[^\n]*)|(?P<rule>([-*_])(?:[ \t]*\3){2,}[ \t]*(?=\n))"
    r"|(?P<quotation>(?:>[ \t]?)+)|(?P<item>(?:[-*+]|\d{1,3}[.)])[ \t]+(?:\[[ xX]\][ \t]+)?(?=\S)))"
)

# Markup around text that is kept.
_STARS = re.compile(r"\*(?<![\\*]\*)(\*{0,2})(?=[^\s*])((?:[^*\n]++|\n(?!\n))*+)(?<![\s\\])\*\1(?!\*)")
_UNMARK_PATTERNS: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("[", re.compile(r"!\[([^\[\]\n]*)\](?:\([^()\n]*(?:\([^()\n]*\)[^()\n]*)*\)|\[[^\]\n]*\])"), r"\1"),
    ("[", re.compile(r"\[\^[^\]\s]+\]:?"), ""),
    ("[", re.compile(r"\[([^\[\]]*)\]\([^()\n]*(?:\([^()\n]*\)[^()\n]*)*\)"), r"\1"),
    ("[", re.compile(r"\[([^\[\]\n]+)\]\[[^\]\n]*\]"), r"\1"),
    ("`", re.compile(r"`(?<!``)(`*)(?!`)([^\n]*?[^`\n])`\1(?!`)"), r"\2"),
    ("<", re.compile(r"</?[A-Za-z][^<>\n]*>"), ""),
    ("*", _STARS, r"\2"),
    ("*", _STARS, r"\2"),  # again, for *emphasis* inside **strong text**
    (
        "_",
        re.compile(
            r"_(?<![\\\w]_)(_{0,2})(?=[^\s_])((?:[^_\n]++|\n(?!\n)|(?<=[^\W_])_+(?=[^\W_]))*+)(?<![\s\\])_\1(?!\w)"
        ),
        r"\2",
    ),
    ("~", re.compile(r"~~(?=\S)([^~\n]+)~~"), r"\1"),
    ("\\", re.compile(r"\\([!-/:-@\[-`{-~]|(?=\n))"), r"\1"),
)
_GAP = re.compile(r"\n[ \t]*\n\s*")


def plain_text(text: str, counts: Counts, at_start: bool = True) -> str:
    """Return the running text of a Markdown file."""
    if at_start and (front := _FRONT_MATTER.match(text)):
        counts["front matter dropped"] += 1
        text = text[front.end() :]
    text = f"\n{text}\n"
    for guard, pattern, count_name in _DROP_PATTERNS:
        if guard in text:
            text, num_dropped = pattern.subn("", text)
            counts[count_name] += num_dropped
    text = _without_line_marks(_without_underlined(text, counts), counts)
    for guard, pattern, replacement in _UNMARK_PATTERNS:
        if guard in text:
            text = pattern.sub(replacement, text)
    if "&" in text:
        text = html.unescape(text)
    return _GAP.sub("\n\n", text).strip()


def _without_underlined(text: str, counts: Counts) -> str:
    """Drop headings that are underlined by the next line."""
    parts, end = [], 0
    for underline in _UNDERLINE.finditer(text):
        start = text.rfind("\n", 0, underline.start())
        before = text.rfind("\n", 0, max(start, 0))
        heading = text[start + 1 : underline.start()].strip()
        if start >= end and heading.strip("-=") and not text[before + 1 : max(start, 0)].strip():
            parts.append(text[end:start])
            end = underline.end()
            counts["headings dropped"] += 1
    return "".join([*parts, text[end:]]) if parts else text


def _without_line_marks(text: str, counts: Counts) -> str:
    num_by_kind = Counter[str]()

    def replacement(mark: re.Match[str]) -> str:
        kind = mark.lastgroup or "rule"
        num_by_kind[kind] += 1
        # A list item is a separate paragraph.
        return "\n\n" if kind == "item" else "\n"

    text = _LINE_MARK.sub(replacement, text)
    if num_by_kind["quotation"]:
        text = _LINE_MARK.sub(replacement, text)  # a block quote may contain headings and lists
    counts["headings dropped"] += num_by_kind["heading"]
    return text


def _read(chunk: FileChunk, counts: Counts) -> Iterator[RawDocument]:
    text = plain_text(chunk.decode(counts), counts, at_start=not chunk.starts_inside_document)
    if text:
        name = chunk.name if not chunk.starts_inside_document else chunk.location(0)
        yield RawDocument(text, name, chunk.lines)
    else:
        counts["documents dropped: no running text"] += 1


def _find_boundary(data: bytes, start: int, chunk: FileChunk) -> int | None:
    return None  # a file is one document


# A line break in Markdown is a space; an empty line ends a paragraph.
MARKDOWN = Format(
    name="markdown", extensions=(".md", ".markdown"), read=_read, find_boundary=_find_boundary, lines="wrapped"
)
