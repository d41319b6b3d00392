"""Clean passages: a raw Passage in, a Document of sentences out, and a line in Counts for whatever was changed."""

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
    """What a clean document is. A rate lies in 0..1; a filter that is not wanted is 0 or 1.

    min_characters        shorter documents are dropped
    max_symbol_rate       documents with a larger share of characters that are neither letters, digits nor spaces
    repair                undo mojibake ("â€œ" for a quote) and broken entities
    """

    min_characters: int = 20
    max_symbol_ratio: float = 0.4
    repair: bool = True

    def __post_init__(self) -> None:
        if self.min_characters < 0:
            raise SettingsError(f"min_characters = {self.min_characters}: must be 0 or more")
        if not 0 <= self.max_symbol_ratio <= 1:
            raise SettingsError(f"max_symbol_rate = {self.max_symbol_ratio}: must lie in 0..1")


# Controls that are not white space, byte-order marks, soft hyphens and zero-width spaces (joiners U+200C and U+200D
# stay: Persian, Hindi and emoji need them). \x1c to \x1f and \x85 separate lines in old files.
_CONTROL = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\ufeff\ufff9-\ufffb]"
)
_LINE_BREAK = re.compile("[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_UNUSUAL_SPACE = re.compile("[\t\xa0\x1f\u1680\u2000-\u200a\u202f\u205f\u3000]")
_SPACES = re.compile("  +")
_SYMBOL = regex.compile(r"[^\w\s]")  # unlike `re`, it takes the vowel signs of Hindi or Thai for parts of a word
# Han, kana and full-width signs: lines of such text were broken where there was no space.
_UNSPACED = "\u3000-\u30ff\u3400-\u9fff\uff00-\uffef"
_HAS_UNSPACED = re.compile(f"[{_UNSPACED}]")
_WRAPPED_UNSPACED = re.compile(f"(?<=[{_UNSPACED}])\n(?=[{_UNSPACED}])")
# What UTF-8 looks like when it was read as Windows-1252 or Latin-1: the letter of a first byte, then the sign of a
# following one; and the start of a quotation mark read as Mac Roman. A quick look, so that ftfy's slow and careful one
# is taken only where it may find something.
_SUSPICIOUS = re.compile("[\xc2-\xf4\u201a][\x80-\xbfÄ€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]")


def clean(raw_document: RawDocument, settings: CleanSettings, counts: Counts) -> Document | None:
    """Return the clean document of a passage, or None if a filter dropped it; `counts` gets a line either way."""
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
    """Return `text` repaired, in NFC, without controls, with single spaces; its line breaks stay."""
    if settings.repair and not text.isascii():
        text = _repair(text, counts)
    if not text.isprintable():
        text, num_removed = _CONTROL.subn("", text)
        if num_removed:
            counts["control characters removed"] += num_removed
        text = _LINE_BREAK.sub("\n", text.replace("\r\n", "\n").replace("\r", "\n"))
    if not text.isascii():
        if not unicodedata.is_normalized("NFC", text):  # after the controls: one may stand before an accent
            text = unicodedata.normalize("NFC", text)
            counts["documents normalised to NFC"] += 1
        replaced = text.count("\ufffd")
        if replaced:
            counts["replacement characters (U+FFFD) found"] += replaced
    text = _UNUSUAL_SPACE.sub(" ", text)
    if "  " in text:
        text = _SPACES.sub(" ", text)
    return text.strip()


def _repair(text: str, counts: Counts) -> str:
    """Undo mojibake line by line: a file may be damaged in one place and sound in the next."""
    if not _SUSPICIOUS.search(text):
        return text
    lines = text.split("\n")
    for place, line in enumerate(lines):
        if _SUSPICIOUS.search(line) and ftfy.badness.is_bad(line):
            fixed = ftfy.fix_encoding(line)
            if fixed != line:
                lines[place] = fixed
                counts["lines repaired: mojibake"] += 1
    return "\n".join(lines)


def _reason_to_drop(text: str, settings: CleanSettings) -> str | None:
    if not text:
        return "empty"
    if len(text) < settings.min_characters:
        return f"shorter than {settings.min_characters} characters"
    if settings.max_symbol_ratio < 1:
        # A sample decides for long documents: their start and their middle.
        sample = text if len(text) < 8192 else text[:4096] + text[len(text) // 2 :][:4096]
        if len(_SYMBOL.findall(sample)) > settings.max_symbol_ratio * len(sample):
            return f"more than {settings.max_symbol_ratio:.0%} symbols"
    return None


def _sentences(text: str, lines: str) -> Iterator[str]:
    """Yield the sentences of a clean text, each with the white space behind it; the last of a line ends with \\n."""
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
            joined = " ".join(block.split())
            if joined:
                yield joined
        return
    for line in text.split("\n"):
        line = line.strip()
        if line:
            yield line
