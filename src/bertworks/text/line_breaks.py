"""The start of a plain text in, the meaning of its line breaks out: sentences, paragraphs or wrapped lines."""

from __future__ import annotations

import re
from itertools import pairwise

SAMPLE_CHARACTERS = 2**18

_CLOSERS = r"[\"'”’»)\]」』）】》]*"
_SENTENCE_END = re.compile(rf"[.!?…。！？；;]{_CLOSERS}$")
_SENTENCE_BREAK = re.compile(rf"[.!?…]{_CLOSERS}\s+[\"'“‘«(\[]?[A-Z]|[。！？]{_CLOSERS}(?!$|[。！？])")
_ABBREVIATION = re.compile(r"\b(?:[A-Z]|Mr|Mrs|Ms|Dr|St|Prof|Jr|Sr|vs|No|Mt|Gen|Col|Capt|Lt|Rev)\.(?=\s)")
_WIDE = re.compile(r"[\u1100-\u11ff\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]")

_MIN_ENDING_RATIO = 0.9  # of the lines, if lines are sentences
_MAX_SENTENCES_PER_LINE = 1.3
_WRAP_WIDTHS = range(40, 141)  # columns; a wide character occupies two
_MIN_INNER_RATIO = 0.4  # of the lines are followed by a line of the same paragraph
_MIN_FULL_RATIO = 0.8  # of the lines inside a paragraph reach two thirds of the width
_MAX_INNER_ENDING_RATIO = 0.5


def line_meaning(text: str) -> str:
    """Return one of LINE_MEANINGS, decided from the first SAMPLE_CHARACTERS of a file."""
    sample = text[:SAMPLE_CHARACTERS]
    if len(text) > SAMPLE_CHARACTERS:
        sample = sample[: sample.rfind("\n") + 1] or sample
    lines = [line.strip() for line in sample.split("\n")]
    non_empty = [line for line in lines if line]
    if not non_empty:
        return "paragraphs"
    if _are_sentences(non_empty):
        return "sentences"
    return "wrapped" if _are_wrapped(lines) else "paragraphs"


def _are_sentences(lines: list[str]) -> bool:
    num_ending = sum(_SENTENCE_END.search(line) is not None for line in lines)
    if num_ending < _MIN_ENDING_RATIO * len(lines):
        return False
    num_breaks = sum(len(_SENTENCE_BREAK.findall(_ABBREVIATION.sub("", line))) for line in lines)
    return len(lines) + num_breaks <= _MAX_SENTENCES_PER_LINE * len(lines)


def _are_wrapped(lines: list[str]) -> bool:
    """Return whether lines inside a paragraph are nearly full and mostly end inside a sentence."""
    inner_lines = [line for line, following in pairwise(lines) if line and following]
    if len(inner_lines) < _MIN_INNER_RATIO * sum(map(bool, lines)) or not inner_lines:
        return False
    widths = sorted(len(line) + len(_WIDE.findall(line)) for line in inner_lines)
    width = widths[int(0.95 * (len(widths) - 1))]
    if width not in _WRAP_WIDTHS or widths[-1] > 2 * width:
        return False
    num_full = sum(3 * line_width >= 2 * width for line_width in widths)
    num_ending = sum(_SENTENCE_END.search(line) is not None for line in inner_lines)
    return num_full >= _MIN_FULL_RATIO * len(inner_lines) and num_ending < _MAX_INNER_ENDING_RATIO * len(inner_lines)
