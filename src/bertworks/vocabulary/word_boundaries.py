"""Word boundaries in Chinese text: text in, one flag per character out.

In English a word is a run of tokens (a `##` token continues a word). Chinese has no spaces, so without word
segmentation whole-word masking would mask single characters. `rjieba` is jieba's algorithm and dictionary in Rust: the
same words on the 1 M characters we compared, at fourteen times the speed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bertworks.vocabulary.characters import SURROGATE


def jieba_boundaries(text: str) -> npt.NDArray[np.bool_]:
    """Return, for each character of `text`, whether one of jieba's words begins there."""
    words = _cut(SURROGATE.sub("\ufffd", text))
    lengths = np.fromiter(map(len, words), dtype=np.int64, count=len(words))
    boundaries = np.zeros(len(text) + 1, dtype=np.bool_)
    boundaries[0] = True
    boundaries[np.cumsum(lengths)] = True
    return boundaries[:-1]


def jieba_words(text: str) -> list[tuple[int, str]]:
    """Return (offset, word) for each of jieba's words in `text`, without white space."""
    words, offset = [], 0
    for word in _cut(SURROGATE.sub("\ufffd", text)):
        if not word.isspace():
            words.append((offset, word))
        offset += len(word)
    return words


def _cut(text: str) -> list[str]:
    import rjieba  # only now: it loads a dictionary

    words: list[str] = rjieba.cut(text, True)
    return words
