"""Words in, their numbers on disk out: a file of integers that is read as often as training needs.

A word gets a number when it is first met, and the file holds these. Only at the end is known how frequent each is; then
the words that get a vector are numbered anew, the most frequent first, and a table leads from the old numbers to the
new ones whenever the file is read.

Memory: about 120 bytes for each different word, of which `num_distinct` are kept; beyond that the rarest are forgotten,
and counted. On disk: four bytes for each word of the text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bertworks.embeddings.static_words import WordSettings
from bertworks.errors import InputError
from bertworks.text.document import Counts
from bertworks.vocabulary.counting import NUM_DISTINCT

Ids = npt.NDArray[np.int32]
# Stands in the file where a stretch ends that windows may not leave.
END = -1
_NO_VECTOR = -2
# Numbers that are read at a time.
_CHUNK = 2**20


class _WordNumbers(dict[str, int]):
    """Numbers words in the order in which they are met. No number is given twice, even if its word is forgotten."""

    num_assigned = 0

    def __missing__(self, word: str) -> int:
        number = self[word] = self.num_assigned
        self.num_assigned += 1
        return number


@dataclass(frozen=True)
class WordStream:
    """The words of a corpus by number: `words[k]` is number k and occurs `counts[k]` times, the most frequent first."""

    path: Path
    words: tuple[str, ...]
    counts: npt.NDArray[np.int64]
    num_contexts: int
    sha256: str
    numbers: Ids = field(repr=False)  # of each number in the file: the number of the word, or _DROPPED

    @property
    def num_words(self) -> int:
        """How many words of text there are, without those that get no vector."""
        return int(self.counts.sum())

    def chunks(self, size: int = _CHUNK) -> Iterator[Ids]:
        """Yield the numbers of all words in order, END between two stretches, about `size` at a time."""
        num_held = self.path.stat().st_size // 4
        for start in range(0, num_held, size):
            given = np.fromfile(self.path, np.int32, size, offset=4 * start)
            ids = np.where(given == END, np.int32(END), self.numbers[given])
            yield ids[ids != _NO_VECTOR]

    def contexts(self, max_words: int) -> Iterator[list[str]]:
        """Yield the stretches as lists of words, cut where they have more than `most`."""
        words = np.array(self.words, dtype=object)
        rest = np.zeros(0, dtype=np.int32)
        for chunk in self.chunks():
            *whole, rest = np.split(ids := np.concatenate([rest, chunk]), np.flatnonzero(ids == END) + 1)
            for stretch in whole:
                yield from _split_context(words[stretch[:-1]].tolist(), max_words)
        yield from _split_context(words[rest].tolist(), max_words)


def _split_context(words: list[str], max_words: int) -> Iterator[list[str]]:
    for start in range(0, len(words), max_words):
        yield words[start : start + max_words]


class WordStreamWriter:
    """Takes stretches of words, writes their numbers to a file and counts them. Use it as a context."""

    def __init__(self, path: Path, counts: Counts, num_distinct: int = NUM_DISTINCT) -> None:
        self._path, self._statistics, self._num_distinct = path, counts, num_distinct
        self._numbers = _WordNumbers()
        self._counts = np.zeros(0, dtype=np.int64)
        self._floor = 0
        self._num_contexts = 0
        self._hash = hashlib.sha256()
        self._file = path.open("wb")

    def __enter__(self) -> WordStreamWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, contexts: Iterable[str]) -> None:
        """Write stretches, each as its words parted by single spaces."""
        flat: list[int] = []
        number_of = self._numbers.__getitem__
        for context in contexts:
            flat.extend(map(number_of, context.split(" ")))
            flat.append(END)
            self._hash.update(context.encode(errors="surrogatepass") + b"\n")
            self._num_contexts += 1
        ids = np.array(flat, dtype=np.int32)
        ids.tofile(self._file)
        found = np.bincount(ids[ids != END], minlength=self._numbers.num_assigned)
        found[: len(self._counts)] += self._counts
        self._counts = found
        while len(self._numbers) > self._num_distinct:
            self._prune()

    def finish(self, settings: WordSettings) -> WordStream:
        """Choose the words that get a vector, and number them: the most frequent first, equals by their text."""
        self._file.close()
        frequent = [
            (-int(self._counts[number]), word, number)
            for word, number in self._numbers.items()
            if self._counts[number] >= settings.min_count
        ]
        kept = sorted(frequent)[: settings.max_words or None]
        if not kept:
            raise InputError(
                f"no word occurs {settings.min_count} times or more among {len(self._numbers)} different ones; give "
                f"more text, or a smaller --min-count"
            )
        num_kept = -sum(count for count, _, _ in kept)
        if left_out := int(self._counts.sum()) - num_kept:
            self._statistics["words left out: too rare for a vector"] += left_out
        numbers = np.full(len(self._counts), _NO_VECTOR, dtype=np.int32)
        numbers[[number for _, _, number in kept]] = np.arange(len(kept), dtype=np.int32)
        return WordStream(
            path=self._path,
            words=tuple(word for _, word, _ in kept),
            counts=np.array([-count for count, _, _ in kept], dtype=np.int64),
            num_contexts=self._num_contexts,
            sha256=self._hash.hexdigest(),
            numbers=numbers,
        )

    def _prune(self) -> None:
        """Forget the rarest words. Each round asks for one occurrence more, which a frequent word soon has."""
        self._floor += 1
        rare = {word: number for word, number in self._numbers.items() if self._counts[number] <= self._floor}
        for word, number in rare.items():
            self._statistics["words left out: too many different ones"] += int(self._counts[number])
            self._counts[number] = 0
            del self._numbers[word]
