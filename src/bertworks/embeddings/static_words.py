"""Words for static vectors: clean documents in, words out; English by letters, Chinese by jieba.

Words are BERT's basic words: runs of letters and digits. Chinese has no spaces, so a sentence with ideographs is
segmented by `rjieba`, and the non-Chinese parts of it like any other text.
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
# What a window may not cross the boundaries of.
CONTEXTS = ("documents", "sentences")


@dataclass(frozen=True, slots=True, kw_only=True)
class WordSettings:
    """What a word is, and which words get a vector.

    cased         distinguish upper and lower case
    punctuation   punctuation characters are words; otherwise they are removed before windows are formed
    context       windows end at the boundaries of "documents" or "sentences"
    min_count     rarer words get no vector, and are removed before windows are formed
    max_words     limit of words with a vector, the most frequent ones; 0 for no limit
    """

    cased: bool = False
    punctuation: bool = False
    context: str = "documents"
    min_count: int = 5
    max_words: int = 400_000

    def __post_init__(self) -> None:
        if self.context not in CONTEXTS:
            raise SettingsError(f"context '{self.context}' is unknown; choose one of: {', '.join(CONTEXTS)}")
        if self.min_count < 1:
            raise SettingsError(f"min_count = {self.min_count}: must be 1 or more")
        if self.max_words < 0:
            raise SettingsError(f"max_words = {self.max_words}: must be 0 (no limit) or more")


def tokenize_words(text: str, settings: WordSettings) -> list[str]:
    """Return the words of a text in order. None of them contains white space."""
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
    """Return the words of a document joined by spaces, one string per context that windows may not cross."""
    sentences = [tokenize_words(sentence, settings) for sentence in document.sentences]
    if settings.context == "sentences":
        return [" ".join(words) for words in sentences if words]
    words = [word for sentence in sentences for word in sentence]
    return [" ".join(words)] if words else []
