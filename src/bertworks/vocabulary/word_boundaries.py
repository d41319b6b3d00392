"""Where words begin in text with ideographs: text in, a flag a character out.

English words are found by their pieces (a `##` piece continues a word). Chinese has no spaces, so that without this
whole-word masking would hide single characters. `rjieba` is jieba's algorithm and dictionary in Rust: the same words
on the 1 M characters we compared, at fourteen times the speed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import rjieba

from bertworks.vocabulary.characters import SURROGATE


def jieba_boundaries(text: str) -> npt.NDArray[np.bool_]:
    """Return, for each character of `text`, whether one of jieba's words begins with it."""
    words = rjieba.cut(SURROGATE.sub("\ufffd", text), True)
    lengths = np.fromiter(map(len, words), dtype=np.int64, count=len(words))
    boundaries = np.zeros(len(text) + 1, dtype=np.bool_)
    boundaries[0] = True
    boundaries[np.cumsum(lengths)] = True
    return boundaries[:-1]


def jieba_words(text: str) -> list[tuple[int, str]]:
    """Return jieba's words of `text`, each with the place where it begins; white space is none."""
    words = rjieba.cut(SURROGATE.sub("\ufffd", text), True)
    found, at = [], 0
    for word in words:
        if not word.isspace():
            found.append((at, word))
        at += len(word)
    return found
