"""BERT's tokenizer as it was published, plain and slow: text in, pieces out. It shares no code with bertworks."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Container

UNKNOWN = "[UNK]"
LONGEST_WORD = 200

# First and last code point of the blocks whose characters are words of their own.
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


def reference_pieces(text: str, vocabulary: Container[str], lower: bool) -> list[str]:
    """The pieces of a text. Lone surrogates are the caller's business."""
    return [piece for word in basic_words(text, lower) for piece in pieces_of_word(word, vocabulary)]


def basic_words(text: str, lower: bool) -> list[str]:
    """Clean, set ideographs apart, split at white space, lower and strip accents, split at punctuation."""
    spaced = "".join(cleaned(character) for character in text)
    return [word for chunk in spaced.split() for word in _split_at_punctuation(normalised(chunk, lower))]


@functools.cache
def cleaned(character: str) -> str:
    """What cleaning makes of one character: nothing, a space, itself, or itself between spaces."""
    category = unicodedata.category(character)
    if character in ("\t", "\n", "\r") or category == "Zs":
        return " "
    if character in ("\0", "\ufffd") or category in ("Cc", "Cf"):
        return ""
    if any(first <= ord(character) <= last for first, last in IDEOGRAPH_BLOCKS.values()):
        return f" {character} "
    return character


def normalised(chunk: str, lower: bool) -> str:
    """Lower case, then without the marks that decomposition leaves; a cased vocabulary takes text as it is."""
    if not lower:
        return chunk
    decomposed = unicodedata.normalize("NFD", chunk.lower())
    return "".join(character for character in decomposed if unicodedata.category(character) != "Mn")


def _split_at_punctuation(chunk: str) -> list[str]:
    words = [""]
    for character in chunk:
        if is_point(character):
            words += [character, ""]
        else:
            words[-1] += character
    return [word for word in words if word]


@functools.cache
def is_point(character: str) -> bool:
    in_ascii = any(low <= ord(character) <= high for low, high in ((33, 47), (58, 64), (91, 96), (123, 126)))
    return in_ascii or unicodedata.category(character)[0] == "P"


def pieces_of_word(word: str, vocabulary: Container[str]) -> list[str]:
    """Take the longest piece that fits, then the longest that continues; if none does, the whole word is unknown."""
    if len(word) > LONGEST_WORD:
        return [UNKNOWN]
    pieces: list[str] = []
    rest = word
    while rest:
        mark = "##" if pieces else ""
        fitting = (mark + rest[:length] for length in range(len(rest), 0, -1) if mark + rest[:length] in vocabulary)
        longest = next(fitting, None)
        if longest is None:
            return [UNKNOWN]
        pieces.append(longest)
        rest = rest[len(longest) - len(mark) :]
    return pieces
