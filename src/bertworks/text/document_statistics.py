"""A clean Document in; its lengths, scripts, language and letter case are added to TextStatistics."""

from __future__ import annotations

import re
from collections import Counter

from bertworks.text.document import Document
from bertworks.text.languages import language_of, scripts_of
from bertworks.text.statistics import TextStatistics

_UNSPACED_SCRIPTS = ("Han", "Hiragana", "Katakana", "Thai", "Khmer", "Myanmar")
_SPACED_WORD = re.compile(
    "[^\\W\u0e00-\u0e7f\u1000-\u109f\u1780-\u17ff\u2e80-\ua4cf\uf900-\ufaff\U00020000-\U0003ffff]+"
)
_FIRST_LETTER = re.compile(r"[^\W\d_]")


def add_document_statistics(document: Document, statistics: TextStatistics) -> int:
    """Add the statistics of a document; return its number of ideographs.

    Words are separated by spaces; in scripts without spaces each letter counts as one.
    """
    text = document.text
    characters = Counter(text)
    scripts = scripts_of(characters)
    statistics.totals["documents"] += 1
    statistics.totals["sentences"] += len(document.sentences)
    statistics.totals["characters"] += len(text)
    statistics.totals["words"] += _num_words(text, scripts)
    statistics.add_length("sentences per document", len(document.sentences))
    statistics.add_length("characters per document", len(text))
    for sentence in document.sentences:
        statistics.add_length("characters per sentence", len(sentence.rstrip()))
    for script, number in scripts.items():
        statistics.totals[f"script: {script}"] += number
    language = language_of(text, characters, scripts)
    if language:
        statistics.totals[f"language: {language}"] += scripts.total()
    _add_case(document, characters, statistics)
    return scripts["Han"]


def _num_words(text: str, scripts: Counter[str]) -> int:
    num_unspaced = sum(scripts[script] for script in _UNSPACED_SCRIPTS)
    return num_unspaced + len(_SPACED_WORD.findall(text)) if num_unspaced else len(text.split())


def _add_case(document: Document, characters: Counter[str], statistics: TextStatistics) -> None:
    for character, number in characters.items():
        if character.isupper():
            statistics.totals["capital letters"] += number
        elif character.islower():
            statistics.totals["lower-case letters"] += number
    for sentence in document.sentences:
        first = _FIRST_LETTER.search(sentence)
        if first and first[0].islower():
            statistics.totals["sentences with lower-case start"] += 1
            statistics.add_excerpt("sentences with lower-case start", sentence, document.source)
