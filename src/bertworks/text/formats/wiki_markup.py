"""Markup of a wiki page in, its prose out, without templates, tables, lists, headings, notes and files."""

from __future__ import annotations

import html
import re

from bertworks.text.document import Counts

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.S)
# Elements that are dropped with their content: notes, formulas, code, galleries. Self-closing ones are dropped first.
_ELEMENTS = (
    "ref|references|math|chem|ce|gallery|timeline|syntaxhighlight|source|pre|imagemap|score|table|hiero|graph|mapframe"
)
_SELF_CLOSING_ELEMENT = re.compile(rf"<(?:{_ELEMENTS})\b[^<>]*/>", re.I)
_ELEMENT = re.compile(rf"<({_ELEMENTS})\b[^<>]*>.*?</\1\s*>", re.S | re.I)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_BREAK = re.compile(r"<br\s*/?>", re.I)

# Templates that expand to words of a sentence; all others are dropped.
_WORD_TEMPLATE = re.compile(
    r"\{\{\s*(lang|transl|convert|cvt|nowrap|nobr|nbsp|snd|spnd|spaced ndash|ndash|mdash|circa|c\.|'|\""
    r"|en dash|em dash)\s*(?:\|([^{}]*))?\}\}",
    re.I,
)
_SIGNS = {
    "nbsp": " ", "snd": " – ", "spnd": " – ", "spaced ndash": " – ", "ndash": "–", "en dash": "–",
    "mdash": "—", "em dash": "—", "'": "'", '"': '"',
}  # fmt: skip
_NUMBERED_ARGUMENT = re.compile(r"^\d+\s*=\s*")
_NAMED_ARGUMENT = re.compile(r"[a-z_-]+\s*=", re.I)
_BRACES = re.compile(r"\{\{|\}\}|\{\||\|\}(?!\})")
_CLOSES = {"}}": "{{", "|}": "{|"}
# Chinese pages give a word in several scripts: -{zh-hans:网络; zh-hant:網路}-. The first one is kept.
_VARIANTS = re.compile(r"-\{([^{}]*)\}-")

_LINK = re.compile(r"\[\[([^\[\]]*)\]\]")
_LINK_DEPTH = 6
# Link targets with a prefix are files, categories or other languages, not text: [[File:...]], [[fr:...]].
_NOT_WORDS = re.compile(
    r"\s*(?:(?:file|image|category|media|fichier|datei|archivo|文件|檔案|档案|图像|圖像|分类|分類)\s*:"
    r"|(?-i:[a-z]{2,3}(?:-[a-z-]+)?:(?=\S)))",
    re.I,
)
_EXTERNAL_LINK = re.compile(r"\[(?:https?:|ftp:)?//[^\s\]]*\s*([^\]\n]*)\]")
_QUOTES = re.compile(r"''(?:'{0,3})")
_MAGIC_WORD = re.compile(r"__[A-Z]+__")

# Lines are matched by the newline before them, which is much faster than "^" in the regex engine.
_HEADING = re.compile(r"\n={1,6}[^\n]*={1,6}[ \t]*(?=\n)")
_LIST_LINE = re.compile(r"\n[*#:;][^\n]*")
_TABLE_LINE = re.compile(r"\n[ \t\x1f]*(?:[|!]|\{\|)[^\n]*")
# A line is preformatted only if it starts with a space in the source, not if the space was left by a dropped template,
# file or <br>. So these spaces are marked before anything is dropped, with a white space character that XML forbids.
_PREFORMATTED_MARK = "\x1f"
_PREFORMATTED_START = re.compile(r"\n +(?=\S)")
_PREFORMATTED_LINE = re.compile(rf"\n(?:{_PREFORMATTED_MARK}[ \t]*\S|----)[^\n]*")
_LINE_PATTERNS = (
    (_HEADING, "wiki headings dropped"),
    (_LIST_LINE, "wiki list lines dropped"),
    (_TABLE_LINE, "wiki table lines dropped"),
    (_PREFORMATTED_LINE, "wiki preformatted lines dropped"),
)
# Remains of dropped templates: "( ; )", "(; 1912)", two spaces, a space before a comma.
_BRACKETS = (
    (re.compile(r"\([\s,;:/–-]*\)"), ""),
    (re.compile(r"\((?:[ \t]*[,;])+[ \t]*"), "("),
    (re.compile(r"(?:[,;][ \t]*)+\)"), ")"),
)
_WIDE_BRACKETS = (
    (re.compile(r"（[\s，；：、/–-]*）"), ""),
    (re.compile(r"（(?:[ \t]*[，；、])+[ \t]*"), "（"),
    (re.compile(r"(?:[，；、][ \t]*)+）"), "）"),
)
_SPACES = re.compile(r"  +")
_SPACE_BEFORE = re.compile(r" (?=[,.;:!?)](?:\s|$))", re.M)


def prose(markup: str, counts: Counts) -> str:
    """Return the prose of a page, one paragraph per line; what is dropped is counted by kind."""
    text = _COMMENT.sub("", _PREFORMATTED_START.sub(f"\n{_PREFORMATTED_MARK}", f"\n{markup}"))
    text = _SELF_CLOSING_ELEMENT.sub("", text)
    text, num_elements = _ELEMENT.subn("", text)
    counts["wiki notes and formulas dropped"] += num_elements
    if "-{" in text:
        text = _VARIANTS.sub(_first_variant, text)
    text = _WORD_TEMPLATE.sub(_template_words, text)
    text = _without_braces(text, counts)
    text = _resolve_links(text)
    text = _EXTERNAL_LINK.sub(r"\1", text)
    text = _TAG.sub("", _BREAK.sub("\n", text)) + "\n"
    for pattern, count_name in _LINE_PATTERNS:
        text, num_dropped = pattern.subn("", text)
        counts[count_name] += num_dropped
    text = html.unescape(_MAGIC_WORD.sub("", _QUOTES.sub("", text)))
    return _normalize_spaces(text.replace("\xa0", " ").replace(_PREFORMATTED_MARK, " "))


def _normalize_spaces(text: str) -> str:
    for pattern, replacement in (*_BRACKETS, *_WIDE_BRACKETS) if "（" in text else _BRACKETS:
        text = pattern.sub(replacement, text)
    text = _SPACE_BEFORE.sub("", _SPACES.sub(" ", text))
    return "\n".join([line for line in map(str.strip, text.split("\n")) if line])


def _first_variant(match: re.Match[str]) -> str:
    first = match[1].split(";")[0]
    return first.rpartition(":")[2].rpartition("|")[2].strip()


def _template_words(match: re.Match[str]) -> str:
    name, values = match[1].lower(), _positional_values(match[2] or "")
    if name in _SIGNS:
        return _SIGNS[name]
    if name in ("convert", "cvt"):
        return " ".join(values[:2])
    if name in ("circa", "c."):
        return " ".join(["c.", *values[:1]]).rstrip()
    return values[-1] if values else ""


def _positional_values(arguments: str) -> list[str]:
    """Return the positional arguments of a template: "a", or "1=a" if the value contains a "="."""
    values = [value.strip() for value in arguments.split("|")]
    return [_NUMBERED_ARGUMENT.sub("", value) for value in values if not _NAMED_ARGUMENT.match(value)]


def _without_braces(text: str, counts: Counts) -> str:
    """Drop templates and tables, also nested ones, in one pass; of an unclosed one only its line is dropped."""
    open_at: list[tuple[str, int]] = []
    spans: list[tuple[int, int]] = []
    for match in _BRACES.finditer(text):
        mark = match[0]
        if mark not in _CLOSES:
            open_at.append((mark, match.start()))
        elif open_at and open_at[-1][0] == _CLOSES[mark]:
            start = open_at.pop()[1]
            while spans and spans[-1][0] > start:
                spans.pop()
            spans.append((start, match.end()))
    counts["wiki templates and tables dropped"] += len(spans)
    for _, start in open_at:
        end = text.find("\n", start)
        spans.append((start, end if end >= 0 else len(text)))
    parts, position = [], 0
    for start, end in sorted(spans):
        parts.append(text[position:start])
        position = max(position, end)
    return "".join([*parts, text[position:]])


def _resolve_links(text: str) -> str:
    """Replace links by their text, innermost first, so that a caption with links does not hide its file link."""
    for _ in range(_LINK_DEPTH):
        text, num_links = _LINK.subn(_link_words, text)
        if not num_links:
            break
    return text


def _link_words(match: re.Match[str]) -> str:
    target = match[1]
    if ":" in target and _NOT_WORDS.match(target):
        return ""
    return target.rpartition("|")[2].lstrip(":")
