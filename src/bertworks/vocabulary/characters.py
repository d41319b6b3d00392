"""The character classes of BERT's released tokenizer: white space, control, punctuation, ideographs."""

from __future__ import annotations

import functools
import re
import unicodedata

import numpy as np
import numpy.typing as npt

# The Unicode blocks of ideographs, which BERT surrounds with spaces. Kana and Hangul are not among them.
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
# A space between tokens that a text in Chinese does not have: beside an ideograph or a mark such as 。 ， 《.
_CHINESE_CLASS = f"[{_IDEOGRAPH_CLASS}\u3001-\u3011\u3014-\u301b\uff01-\uff0f\uff1a-\uff1f]"
SPACE_AT_IDEOGRAPH = re.compile(f" (?={_CHINESE_CLASS})|(?<={_CHINESE_CLASS}) ")

# White space that separates words. Python's split() also splits at \v, \f, \x1c to \x1f and \x85; BERT removes these as
# control characters, without splitting.
SPACES = (
    " \t\n\r\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
CONTROL_WHITESPACE = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
SURROGATE = re.compile("[\ud800-\udfff]")


def is_removed(character: str) -> bool:
    """True for characters that cleaning removes: NUL, the replacement character, control and format characters.

    Lone surrogates too, since they are replaced by the replacement character.
    """
    if character in "\t\n\r":
        return False
    return character in "\0\ufffd" or unicodedata.category(character) in ("Cc", "Cf", "Cs")


def is_punctuation(character: str) -> bool:
    """True for ASCII characters other than letters, digits and space ("$" and "^" too), and Unicode's category P."""
    code = ord(character)
    if code < 128:
        return 33 <= code <= 126 and not character.isalnum()
    return unicodedata.category(character).startswith("P")


# The values of `character_classes`.
SPACE, LETTER, ALONE = 0, 1, 2


@functools.cache
def character_classes() -> npt.NDArray[np.uint8]:
    """Return the class of every code point: SPACE, ALONE (ideographs and punctuation: always single words) or LETTER.

    Punctuation outside the basic multilingual plane is LETTER, which is correct but not as fast.
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
