"""Clean and split: RawDocument in, Document of sentences out; every change is counted."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import ftfy
import ftfy.badness
import regex

from bertworks.errors import SettingsError
from bertworks.text.document import Counts, Document, RawDocument
from bertworks.text.sentences import split_sentences


@dataclass(frozen=True, slots=True)
class CleanSettings:
    """Filters and repairs of documents. `min_characters = 0` and `max_symbol_ratio = 1` disable the filters.

    min_characters    shorter documents are dropped
    max_symbol_ratio  documents with a larger ratio of characters other than letters, digits and spaces are dropped
    repair            undo mojibake ("â€œ" instead of a quote)
    """

    min_characters: int = 20
    max_symbol_ratio: float = 0.4
    repair: bool = True

    def __post_init__(self) -> None:
        if self.min_characters < 0:
            raise SettingsError(f"min_characters = {self.min_characters}: must be 0 or more")
        if not 0 <= self.max_symbol_ratio <= 1:
            raise SettingsError(f"max_symbol_ratio = {self.max_symbol_ratio}: must lie in 0..1")


# Controls that are not white space, byte-order marks, soft hyphens and zero-width spaces (joiners U+200C and U+200D
# are kept: Persian, Hindi and emoji need them). \x1c to \x1f and \x85 are line separators of old files.
_CONTROL = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\ufeff\ufff9-\ufffb]"
)
_LINE_BREAK = re.compile("[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_UNUSUAL_SPACE = re.compile("[\t\xa0\x1f\u1680\u2000-\u200a\u202f\u205f\u3000]")
_SPACES = re.compile("  +")
_SYMBOL = regex.compile(r"[^\w\s]")  # unlike in `re`, vowel signs of Hindi or Thai are \w
# Han, kana and full-width characters: such text is wrapped without a space at the line break.
_UNSPACED = "\u3000-\u30ff\u3400-\u9fff\uff00-\uffef"
_HAS_UNSPACED = re.compile(f"[{_UNSPACED}]")
_WRAPPED_UNSPACED = re.compile(f"(?<=[{_UNSPACED}])\n(?=[{_UNSPACED}])")
# UTF-8 decoded as Windows-1252 or Latin-1: the character of a lead byte, then that of a continuation byte; and the
# start of a quotation mark decoded as Mac Roman. A quick guard before the slow check of ftfy.
_SUSPICIOUS = re.compile("[\xc2-\xf4\u201a][\x80-\xbfÄ€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]")


def clean(raw_document: RawDocument, settings: CleanSettings, counts: Counts) -> Document | None:
    """Return the clean document, or None if a filter dropped it; both are counted."""
    counts["documents read"] += 1
    text = clean_text(raw_document.text, settings, counts)
    reason = _reason_to_drop(text, settings)
    if reason:
        counts[f"documents dropped: {reason}"] += 1
        counts[f"characters dropped: {reason}"] += len(text)
        return None
    sentences = tuple(_sentences(text, raw_document.lines))
    return Document(sentences, raw_document.source)


def clean_text(text: str, settings: CleanSettings, counts: Counts) -> str:
    """Return `text` repaired, in NFC, without control characters, with single spaces; line breaks are kept."""
    if settings.repair and not text.isascii():
        text = _repair(text, counts)
    if not text.isprintable():
        text, num_removed = _CONTROL.subn("", text)
        if num_removed:
            counts["control characters removed"] += num_removed
        text = _LINE_BREAK.sub("\n", text.replace("\r\n", "\n").replace("\r", "\n"))
    if not text.isascii():
        if not unicodedata.is_normalized("NFC", text):  # after removing controls: one may precede a combining accent
            text = unicodedata.normalize("NFC", text)
            counts["documents normalised to NFC"] += 1
        num_replaced = text.count("\ufffd")
        if num_replaced:
            counts["replacement characters (U+FFFD) found"] += num_replaced
    text = _UNUSUAL_SPACE.sub(" ", text)
    if "  " in text:
        text = _SPACES.sub(" ", text)
    return text.strip()


def _repair(text: str, counts: Counts) -> str:
    """Undo mojibake line by line, since often only a part of a file is damaged."""
    if not _SUSPICIOUS.search(text):
        return text
    lines = text.split("\n")
    for index, line in enumerate(lines):
        if _SUSPICIOUS.search(line) and ftfy.badness.is_bad(line):
            fixed = ftfy.fix_encoding(line)
            if fixed != line:
                lines[index] = fixed
                counts["lines repaired: mojibake"] += 1
    return "\n".join(lines)


def _reason_to_drop(text: str, settings: CleanSettings) -> str | None:
    if not text:
        return "empty"
    if len(text) < settings.min_characters:
        return f"shorter than {settings.min_characters} characters"
    if settings.max_symbol_ratio < 1:
        # Long documents are sampled at their start and their middle.
        sample = text if len(text) < 8192 else text[:4096] + text[len(text) // 2 :][:4096]
        if len(_SYMBOL.findall(sample)) > settings.max_symbol_ratio * len(sample):
            return f"more than {settings.max_symbol_ratio:.0%} symbols"
    return None


def _sentences(text: str, lines: str) -> Iterator[str]:
    """Yield the sentences of a clean text with their trailing white space; the last of a line ends with "\\n"."""
    for paragraph in _paragraphs(text, lines):
        if lines == "sentences":
            yield paragraph + "\n"
            continue
        sentences = split_sentences(paragraph)
        yield from sentences[:-1]
        yield sentences[-1] + "\n"


def _paragraphs(text: str, lines: str) -> Iterator[str]:
    if lines == "wrapped":
        if _HAS_UNSPACED.search(text):
            text = _WRAPPED_UNSPACED.sub("", text.replace(" \n", "\n").replace("\n ", "\n"))
        for block in re.split(r"\n[ ]*\n", text):
            paragraph = " ".join(block.split())
            if paragraph:
                yield paragraph
        return
    for line in text.split("\n"):
        line = line.strip()
        if line:
            yield line
