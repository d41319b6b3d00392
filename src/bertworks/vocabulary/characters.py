"""What BERT's released tokenizer takes a character to be: white space, control, punctuation or an ideograph."""

from __future__ import annotations

import functools
import re
import unicodedata

import numpy as np
import numpy.typing as npt

# The ideograph blocks that BERT surrounds with spaces. Kana and Hangul are not among them: they stay in words.
IDEOGRAPHS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)
_IDEOGRAPH_CLASS = "".join(f"{chr(first)}-{chr(last)}" for first, last in IDEOGRAPHS)
IDEOGRAPH = re.compile(f"[{_IDEOGRAPH_CLASS}]")

# White space that separates words. Python's own split() also cuts at \v, \f, \x1c to \x1f and \x85, but those are
# control characters to BERT: it removes them, so that the letters around them join.
SPACES = (
    " \t\n\r\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
CONTROL_WHITESPACE = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
SURROGATE = re.compile("[\ud800-\udfff]")


def is_removed(character: str) -> bool:
    """True for what cleaning drops: NUL, the replacement character, control and format characters.

    Lone surrogates are dropped too: they are read as the replacement character, which is.
    """
    if character in "\t\n\r":
        return False
    return character in "\0\ufffd" or unicodedata.category(character) in ("Cc", "Cf", "Cs")


def is_punctuation(character: str) -> bool:
    """True for every ASCII character that is no letter, digit or space ("$" and "^" too), and Unicode's class P."""
    code = ord(character)
    if code < 128:
        return 33 <= code <= 126 and not character.isalnum()
    return unicodedata.category(character).startswith("P")


# The classes of `character_classes`.
SPACE, LETTER, ALONE = 0, 1, 2


@functools.cache
def character_classes() -> npt.NDArray[np.uint8]:
    """For every code point: SPACE, ALONE (an ideograph or punctuation: always a word of its own), or LETTER.

    Punctuation beyond the first plane is left among the letters: that is always right, only not as fast.
    """
    classes = np.full(0x110000, LETTER, dtype=np.uint8)
    for code in range(0x10000):
        if is_punctuation(chr(code)):
            classes[code] = ALONE
    for first, last in IDEOGRAPHS:
        classes[first : last + 1] = ALONE
    for space in SPACES:
        classes[ord(space)] = SPACE
    return classes
