"""Clean documents in, the words that static vectors are learned for out: English by letters, Chinese by jieba.

Words are BERT's basic ones: runs of letters and digits, whatever stands between. Chinese has no spaces, so that a
sentence with ideographs is cut by `rjieba`, and what is not Chinese in it like any other text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import rjieba

from bertworks.errors import SettingsError
from bertworks.text.document import Document
from bertworks.vocabulary.characters import IDEOGRAPH, SURROGATE

_WORD = re.compile(r"[^\W_]+")
_WORD_OR_PUNCTUATION = re.compile(r"[^\W_]+|[^\w\s]|_")
# How far a window may reach: to the ends of a sentence, or of a document.
REACHES = ("documents", "sentences")


@dataclass(frozen=True, slots=True)
class WordSettings:
    """What a word is, and which words get a vector.

    cased         tell capital letters from small ones
    punctuation   signs are words too; otherwise they are left out before any window is laid
    reach         windows end with the "documents" or with the "sentences"
    min_count     rarer words get no vector, and are left out before any window is laid
    max_words     of the others, so many of the most frequent; 0 takes all
    """

    cased: bool = False
    punctuation: bool = False
    reach: str = "documents"
    min_count: int = 5
    max_words: int = 400_000

    def __post_init__(self) -> None:
        if self.reach not in REACHES:
            raise SettingsError(f"reach '{self.reach}' is unknown; choose one of: {', '.join(REACHES)}")
        if self.min_count < 1:
            raise SettingsError(f"min_count = {self.min_count}: must be 1 or more")
        if self.max_words < 0:
            raise SettingsError(f"max_words = {self.max_words}: must be 0 (all) or more")


def tokenize_words(text: str, settings: WordSettings) -> list[str]:
    """Return the words of a text in order. None of them holds white space."""
    if not settings.cased:
        text = text.lower()
    pattern = _WORD_OR_PUNCTUATION if settings.punctuation else _WORD
    if IDEOGRAPH.search(text) is None:
        return pattern.findall(text)
    words: list[str] = []
    for word in rjieba.cut(SURROGATE.sub("\ufffd", text), True):
        if IDEOGRAPH.match(word):
            words.append(word)
        else:
            words += pattern.findall(word)
    return words


def document_contexts(document: Document, settings: WordSettings) -> list[str]:
    """Return the words of a document, parted by spaces: one text for each stretch that a window may not leave."""
    sentences = [tokenize_words(sentence, settings) for sentence in document.sentences]
    if settings.reach == "sentences":
        return [" ".join(words) for words in sentences if words]
    words = [word for sentence in sentences for word in sentence]
    return [" ".join(words)] if words else []
