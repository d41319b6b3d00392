"""A table of word vectors in memory: words in, their vectors, neighbours and analogies out.

V words, D the width, N words that are asked for.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertworks.errors import InputError, SettingsError

Table = npt.NDArray[np.float32]


class Neighbor(NamedTuple):
    """A word, and the cosine of the angle between it and what was asked for."""

    word: str
    cosine: float


# What a word without a vector gets: zeros, the mean of all vectors, or a refusal that names it.
UNKNOWN_RULES: dict[str, Callable[[StaticVectors, str], Table]] = {
    "zeros": lambda vectors, word: np.zeros(vectors.vector_size, dtype=np.float32),
    "mean": lambda vectors, word: vectors.mean,
    "refuse": lambda vectors, word: vectors.vector(word),
}


class StaticVectors:
    """Words and one vector each, the most frequent first. A word is looked up as it stands, else in small letters.

    `facts` tell where they came from: kind, settings, corpus; empty for files of others.
    """

    def __init__(self, words: Sequence[str], table: Table, metadata: dict[str, Any] | None = None) -> None:
        assert table.shape[:1] == (len(words),), (table.shape, len(words))
        assert table.ndim == 2, table.shape
        self.words = tuple(words)
        self.table = table  # (V, D)
        self.metadata = metadata or {}
        self._word_to_row = {word: number for number, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return self.find(word) is not None

    @property
    def vector_size(self) -> int:
        return self.table.shape[1]

    @functools.cached_property
    def mean(self) -> Table:
        """The mean of all vectors, (D,)."""
        return self.table.mean(axis=0)

    @functools.cached_property
    def unit_vectors(self) -> Table:
        """All vectors at length 1, (V, D): a second table, made when it is first needed."""
        lengths = np.linalg.norm(self.table, axis=1, keepdims=True)
        return self.table / np.maximum(lengths, np.float32(1e-12))

    def find(self, word: str) -> int | None:
        """Return the row of a word, as it stands or in small letters; None if it has no vector."""
        number = self._word_to_row.get(word)
        return self._word_to_row.get(word.lower()) if number is None else number

    def row(self, word: str) -> int:
        """Return the row of a word; one without a vector is refused, with words that are spelled like it."""
        number = self.find(word)
        if number is None:
            close = difflib.get_close_matches(word.lower(), self.words, 3)
            hint = f"; did you mean {', '.join(close)}?" if close else "; ask for another word"
            raise InputError(f"'{word}' is not among the {len(self):,} words that have a vector{hint}")
        return number

    def vector(self, word: str) -> Table:
        """Return the vector (D,) of a word; one without is refused."""
        return self.table[self.row(word)].copy()

    def has_vectors(self, words: Iterable[str]) -> npt.NDArray[np.bool_]:
        """Return, for each word, whether it has a vector, (N,)."""
        return np.array([word in self for word in words], dtype=np.bool_)

    def vectors(self, words: Sequence[str], unknown: str = "zeros") -> Table:
        """Return the vectors of words, (N, D); `unknown` names what a word without one gets: see UNKNOWN_RULES."""
        if unknown not in UNKNOWN_RULES:
            raise SettingsError(f"unknown = '{unknown}': choose one of: {', '.join(UNKNOWN_RULES)}")
        result = np.empty((len(words), self.vector_size), dtype=np.float32)
        for place, word in enumerate(words):
            number = self.find(word)
            result[place] = UNKNOWN_RULES[unknown](self, word) if number is None else self.table[number]
        return result

    def nearest(self, query: Table, top: int = 10, exclude: Iterable[str] = ()) -> list[Neighbor]:
        """Return the words nearest to a vector (D,) by cosine, the nearest first; of equals the more frequent one."""
        if top < 1:
            raise SettingsError(f"top is {top}; ask for at least one word")
        cosines = self.unit_vectors @ (query / np.maximum(np.linalg.norm(query), np.float32(1e-12)))  # (V,)
        cosines[[number for number in map(self.find, exclude) if number is not None]] = -np.inf
        best = np.argsort(-cosines, kind="stable")[:top]
        return [Neighbor(self.words[number], float(cosines[number])) for number in best if cosines[number] > -np.inf]

    def most_similar(self, word: str, top: int = 10) -> list[Neighbor]:
        """Return the words nearest to a word, without itself."""
        return self.nearest(self.vector(word), top, [word])

    def analogy(self, first: str, second: str, third: str, top: int = 10) -> list[Neighbor]:
        """Return what is to `third` as `second` is to `first` (3CosAdd); none of the three is an answer."""
        one, two, three = self.unit_vectors[[self.row(word) for word in (first, second, third)]]
        return self.nearest(two - one + three, top, (first, second, third))
