"""BERT's tokenizer as published, plain and slow: text in, tokens out. It shares no code with bertworks."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Container

UNKNOWN = "[UNK]"
MAX_WORD_LENGTH = 200

# First and last code point of the blocks whose characters are single words.
IDEOGRAPH_BLOCKS = {
    "unified": (0x4E00, 0x9FFF),
    "extension A": (0x3400, 0x4DBF),
    "extension B": (0x20000, 0x2A6DF),
    "extension C": (0x2A700, 0x2B73F),
    "extension D": (0x2B740, 0x2B81F),
    "extension E": (0x2B820, 0x2CEAF),
    "compatibility": (0xF900, 0xFAFF),
    "compatibility supplement": (0x2F800, 0x2FA1F),
}


def reference_tokens(text: str, vocabulary: Container[str], lower: bool) -> list[str]:
    """Return the tokens of a text. The caller must replace lone surrogates."""
    return [token for word in basic_words(text, lower) for token in tokens_of_word(word, vocabulary)]


def basic_words(text: str, lower: bool) -> list[str]:
    """Clean, separate ideographs, split at white space, lower and strip accents, split at punctuation."""
    spaced = "".join(clean_character(character) for character in text)
    return [word for chunk in spaced.split() for word in _split_at_punctuation(normalize(chunk, lower))]


@functools.cache
def clean_character(character: str) -> str:
    """Return a character after cleaning: nothing, a space, itself, or itself between spaces."""
    category = unicodedata.category(character)
    if character in ("\t", "\n", "\r") or category == "Zs":
        return " "
    if character in ("\0", "\ufffd") or category in ("Cc", "Cf"):
        return ""
    if any(first <= ord(character) <= last for first, last in IDEOGRAPH_BLOCKS.values()):
        return f" {character} "
    return character


def normalize(chunk: str, lower: bool) -> str:
    """Lower and strip accents; for a cased vocabulary return the text unchanged."""
    if not lower:
        return chunk
    decomposed = unicodedata.normalize("NFD", chunk.lower())
    return "".join(character for character in decomposed if unicodedata.category(character) != "Mn")


def _split_at_punctuation(chunk: str) -> list[str]:
    words = [""]
    for character in chunk:
        if is_punctuation(character):
            words += [character, ""]
        else:
            words[-1] += character
    return [word for word in words if word]


@functools.cache
def is_punctuation(character: str) -> bool:
    in_ascii = any(low <= ord(character) <= high for low, high in ((33, 47), (58, 64), (91, 96), (123, 126)))
    return in_ascii or unicodedata.category(character)[0] == "P"


def tokens_of_word(word: str, vocabulary: Container[str]) -> list[str]:
    """Greedy longest match first; if a part does not match, the whole word is unknown."""
    if len(word) > MAX_WORD_LENGTH:
        return [UNKNOWN]
    tokens: list[str] = []
    remainder = word
    while remainder:
        prefix = "##" if tokens else ""
        candidates = (prefix + remainder[:length] for length in range(len(remainder), 0, -1))
        longest = next((candidate for candidate in candidates if candidate in vocabulary), None)
        if longest is None:
            return [UNKNOWN]
        tokens.append(longest)
        remainder = remainder[len(longest) - len(prefix) :]
    return tokens
