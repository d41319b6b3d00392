"""A RawDocument or a clean Document in, counts of damage, markup and tokenizer artifacts out, each with an excerpt.

Encoding damage is searched in the raw text, since cleaning repairs part of it; everything else in the clean text,
which is what a model is trained on. Every search has a cheap guard, because most texts have no artifacts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import zip_longest

import ftfy
import ftfy.badness

from bertworks.text.document import Document, RawDocument
from bertworks.text.statistics import TextStatistics, preview_around

_CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]")
# Chinese in GB 18030 decoded as Latin-1 or cp1252: runs of pairs of high characters, which no western text has.
_GB_AS_LATIN = re.compile("(?:[\xb0-\xf7][\xa1-\xfe]){4,}")
_MIN_DIFFERENT = 4
# Chinese in UTF-8 decoded as GB 18030: these are the first bytes of ，。“ and of 的, 是, 中 and others.
_UTF8_AS_GB = re.compile("[锛銆鈥鐨鏄涓鍦]")
_MIN_UTF8_AS_GB = 3
_MIN_UTF8_AS_GB_RATIO = 0.05
# U+FFFD in UTF-8 decoded as GB 18030; and uninitialized memory of a debug build.
_LOST_AS_GB = re.compile("锟斤拷|烫烫烫|屯屯屯")
_CHINESE_MOJIBAKE = re.compile(f"{_GB_AS_LATIN.pattern}|{_UTF8_AS_GB.pattern}|{_LOST_AS_GB.pattern}")


def find_damage(raw_document: RawDocument, was_repaired: bool, statistics: TextStatistics) -> None:
    """Count the damaged lines of a raw document; `was_repaired`: cleaning repaired mojibake in it."""
    text = raw_document.text
    if was_repaired:
        _count_damage("mojibake, repaired by cleaning", _mojibake_index, raw_document, statistics)
    if text.isascii() and not _CONTROL.search(text):
        return
    for name, (guard, find) in _DAMAGE.items():
        if guard(text):
            _count_damage(name, find, raw_document, statistics)


# Line -> index of the damage, or None.
_FindIndex = Callable[[str], int | None]


def _count_damage(name: str, find: _FindIndex, raw_document: RawDocument, statistics: TextStatistics) -> None:
    for line in raw_document.text.split("\n"):
        index = find(line)
        if index is not None:
            statistics.totals[f"damage: {name}"] += 1
            statistics.add_excerpt(name, preview_around(line, index), raw_document.source)


def _mojibake_index(line: str) -> int | None:
    if not ftfy.badness.is_bad(line):
        return None
    fixed = ftfy.fix_encoding(line)
    return next((index for index, (old, new) in enumerate(zip_longest(line, fixed)) if old != new), None)


def _chinese_mojibake_index(line: str) -> int | None:
    if match := _LOST_AS_GB.search(line):
        return match.start()
    for match in _GB_AS_LATIN.finditer(line):
        if len(set(match[0])) >= _MIN_DIFFERENT:  # a run of middle dots is not Chinese
            return match.start()
    characters = _UTF8_AS_GB.findall(line)
    # Each of these is also a rare character of real text, such as 涓涓 (trickling).
    if len(set(characters)) > 1 and len(characters) >= max(_MIN_UTF8_AS_GB, _MIN_UTF8_AS_GB_RATIO * len(line)):
        return line.index(characters[0])
    return None


def _control_index(line: str) -> int | None:
    match = _CONTROL.search(line)
    return match.start() if match else None


def _replacement_index(line: str) -> int | None:
    index = line.find("\ufffd")
    return index if index >= 0 else None


# Kind of damage -> a cheap guard on the whole text, and the search in a line.
_DAMAGE: Mapping[str, tuple[Callable[[str], object], _FindIndex]] = {
    "mojibake, not repaired": (_CHINESE_MOJIBAKE.search, _chinese_mojibake_index),
    "replacement characters (U+FFFD)": (lambda text: "\ufffd" in text, _replacement_index),
    "control characters": (_CONTROL.search, _control_index),
}


_TAGS = "p|br|hr|div|span|a|b|i|u|em|strong|td|tr|th|table|tbody|li|ul|ol|dl|dt|dd|h[1-6]|img|script|style|body|html"
_TAGS += "|head|title|meta|link|font|center|sup|sub|ref|nowiki|blockquote|pre|code|small|input|form|button|iframe"

# Markup of the original format -> guard strings, one of which must occur, and the pattern; matching lines are counted.
_MARKUP: Mapping[str, tuple[tuple[str, ...], re.Pattern[str]]] = {
    "HTML": (
        ("<", "&"),
        re.compile(rf"</?(?:{_TAGS})(?:\s[^<>\n]{{0,400}})?/?>|&(?:nbsp|amp|lt|gt|quot|#x?\w{{2,5}});", re.I),
    ),
    "wiki markup": (
        ("[[", "{{", "'''", "=="),
        re.compile(r"\[\[[^\]\n]+\]\]|\{\{[^}\n]+\}\}|'''\w|^={2,}[^=\n]+={2,}\s*$"),
    ),
    "JSON": (('":', '" :'), re.compile(r"""^\s*[\[{]*\s*"[^"\n]{1,60}"\s?:\s*(?:["\[{\d-]|true|false|null)""")),
    "code": (
        ("{", "}", ");", "#include", "def ", "class "),
        re.compile(r"[{}]\s*$|\);\s*$|^\s*#include\b|^\s*(?:def|class)\s+\w+[^.!?\n]*:\s*$"),
    ),
    "encoded data": (("+", "/", "="), re.compile(r"[A-Za-z0-9+/_-]{120}")),
}
# Artifacts of a tokenizer, in the same form.
_TOKENIZER_ARTIFACTS: Mapping[str, tuple[tuple[str, ...], re.Pattern[str]]] = {
    "@-@ marks": (("@-@", "@,@", "@.@"), re.compile(r" @[-,.]@ ")),
    "## tokens": (("##",), re.compile(r"\w ##\w")),
    "@@ tokens": (("@@ ",), re.compile(r"\w@@ \w")),
    "▁ tokens": (("▁",), re.compile(r"▁\w")),
    "unknown words": (("<unk>", "[UNK]"), re.compile(r"<unk>|\[UNK\]")),
    "n't apart": ((" n't", " n’t", " 're ", " 've ", " 'll "), re.compile(r"\w (?:n['’]t|'re|'ve|'ll)\b")),
}
_SPACED_MARK = re.compile(r"\w [,.](?=\s|$)")
_SPACED_IDEOGRAPH = re.compile("[\u3400-\u9fff] +(?=[\u3400-\u9fff])")
_LINE_END_MARKS = (".", "!", "?", "…", '."', ".”", '!"', "!”", '?"', "?”")


def find_artifacts(document: Document, num_ideographs: int, statistics: TextStatistics) -> None:
    """Count markup, tokenizer artifacts and sentence ends in a clean document."""
    text = document.text
    statistics.totals["lines"] += text.count("\n") + (not text.endswith("\n"))
    for kind, patterns in (("markup", _MARKUP), ("tokenized", _TOKENIZER_ARTIFACTS)):
        for name, (guards, pattern) in patterns.items():
            if any(guard in text for guard in guards):
                _count_lines(f"{kind}: {name}", pattern, document, statistics)
    _count_spaced_marks(text, document.source, statistics)
    if num_ideographs:
        num_spaced = len(_SPACED_IDEOGRAPH.findall(text))
        statistics.totals["spaced ideographs"] += num_spaced
        if num_spaced > 0.1 * num_ideographs:
            _add_match_excerpt("spaced ideographs", _SPACED_IDEOGRAPH, text, document.source, statistics)
    statistics.totals["sentences with an end mark"] += sum(
        sentence.rstrip().endswith(_LINE_END_MARKS) for sentence in document.sentences
    )


def _count_lines(name: str, pattern: re.Pattern[str], document: Document, statistics: TextStatistics) -> None:
    num_lines = 0
    for line in document.text.split("\n"):
        if match := pattern.search(line):
            num_lines += 1
            statistics.add_excerpt(name, preview_around(line, match.start()), document.source)
    statistics.totals[name] += num_lines


def _count_spaced_marks(text: str, source: str, statistics: TextStatistics) -> None:
    """Count commas and full stops, and those with a space before them, which only a tokenizer inserts."""
    statistics.totals["narrow marks"] += text.count(", ") + text.count(". ") + text.count(".\n") + text.count(",\n")
    if " ," in text or " ." in text:
        num_spaced = len(_SPACED_MARK.findall(text))
        statistics.totals["spaced marks"] += num_spaced
        if num_spaced:
            _add_match_excerpt("spaced marks", _SPACED_MARK, text, source, statistics)


def _add_match_excerpt(name: str, pattern: re.Pattern[str], text: str, source: str, statistics: TextStatistics) -> None:
    if name not in statistics.excerpts and (match := pattern.search(text)):
        start = text.rfind("\n", 0, match.start()) + 1
        statistics.add_excerpt(name, preview_around(text[start:], match.start() - start), source)
