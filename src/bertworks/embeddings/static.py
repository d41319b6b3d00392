"""Static word vectors in memory: words in, their vectors, neighbors and analogies out.

V words, D vector size, N words of a query.
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
    """A word and its cosine similarity to the query."""

    word: str
    cosine: float


# What a word without a vector gets: zeros, the mean of all vectors, or an error.
UNKNOWN_RULES: dict[str, Callable[[StaticVectors, str], Table]] = {
    "zeros": lambda vectors, word: np.zeros(vectors.vector_size, dtype=np.float32),
    "mean": lambda vectors, word: vectors.mean,
    "refuse": lambda vectors, word: vectors.vector(word),
}


class StaticVectors:
    """Words with one vector each, the most frequent first. A word is looked up as it is, then in lower case.

    `metadata` describes their training: kind, settings, corpus; it is empty for files of other tools.
    """

    def __init__(self, words: Sequence[str], table: Table, metadata: dict[str, Any] | None = None) -> None:
        assert table.shape[:1] == (len(words),), (table.shape, len(words))
        assert table.ndim == 2, table.shape
        self.words = tuple(words)
        self.table = table  # (V, D)
        self.metadata = metadata or {}
        self._word_to_row = {word: row for row, word in enumerate(self.words)}

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
        """The vectors normalized to length 1 (V, D), computed on first use."""
        lengths = np.linalg.norm(self.table, axis=1, keepdims=True)
        return self.table / np.maximum(lengths, np.float32(1e-12))

    def find(self, word: str) -> int | None:
        """Return the row of a word, as it is or in lower case; None if it has no vector."""
        row = self._word_to_row.get(word)
        return self._word_to_row.get(word.lower()) if row is None else row

    def row(self, word: str) -> int:
        """Return the row of a word; raise an InputError with similar words if it has no vector."""
        row = self.find(word)
        if row is None:
            close = difflib.get_close_matches(word.lower(), self.words, 3)
            hint = f"; did you mean {', '.join(close)}?" if close else "; choose another word"
            raise InputError(f"'{word}' is not among the {len(self):,} words with a vector{hint}")
        return row

    def vector(self, word: str) -> Table:
        """Return the vector (D,) of a word; raise an InputError if it has none."""
        return self.table[self.row(word)].copy()

    def has_vectors(self, words: Iterable[str]) -> npt.NDArray[np.bool_]:
        """Return, for each word, whether it has a vector, (N,)."""
        return np.array([word in self for word in words], dtype=np.bool_)

    def vectors(self, words: Sequence[str], unknown: str = "zeros") -> Table:
        """Return the vectors of words (N, D); `unknown` is a key of UNKNOWN_RULES."""
        if unknown not in UNKNOWN_RULES:
            raise SettingsError(f"unknown = '{unknown}': choose one of: {', '.join(UNKNOWN_RULES)}")
        result = np.empty((len(words), self.vector_size), dtype=np.float32)
        for index, word in enumerate(words):
            row = self.find(word)
            result[index] = UNKNOWN_RULES[unknown](self, word) if row is None else self.table[row]
        return result

    def nearest(self, query: Table, top: int = 10, exclude: Iterable[str] = ()) -> list[Neighbor]:
        """Return the words nearest to a vector (D,) by cosine, the nearest first; ties go to the more frequent word."""
        if top < 1:
            raise SettingsError(f"top is {top}; it must be at least 1")
        cosines = self.unit_vectors @ (query / np.maximum(np.linalg.norm(query), np.float32(1e-12)))  # (V,)
        cosines[[row for row in map(self.find, exclude) if row is not None]] = -np.inf
        best = np.argsort(-cosines, kind="stable")[:top]
        return [Neighbor(self.words[row], float(cosines[row])) for row in best if cosines[row] > -np.inf]

    def most_similar(self, word: str, top: int = 10) -> list[Neighbor]:
        """Return the words nearest to a word, without the word itself."""
        return self.nearest(self.vector(word), top, [word])

    def analogy(self, first: str, second: str, third: str, top: int = 10) -> list[Neighbor]:
        """Return the words d with first : second = third : d (3CosAdd), without the three words."""
        a, b, c = self.unit_vectors[[self.row(word) for word in (first, second, third)]]
        return self.nearest(b - a + c, top, (first, second, third))
