"""Word streams: words in, a file of their ids out, which training reads once per epoch.

A word gets a temporary id on its first occurrence, and the file contains these. The frequencies are known only at the
end; then the words with a vector are numbered by descending frequency, and a table maps temporary ids to final ones
when the file is read.

Memory: about 120 bytes per distinct word, up to `num_distinct` of them; beyond that the rarest are left out and
counted. On disk: four bytes per word of text.
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
# Marks the end of a context that windows may not cross.
END = -1
_NO_VECTOR = -2
# Ids read at a time.
_CHUNK = 2**20


class _WordIds(dict[str, int]):
    """Assigns ids in the order of first occurrence. No id is assigned twice, even if its word is removed."""

    num_assigned = 0

    def __missing__(self, word: str) -> int:
        word_id = self[word] = self.num_assigned
        self.num_assigned += 1
        return word_id


@dataclass(frozen=True, kw_only=True)
class WordStream:
    """The words of a corpus as ids: `words[k]` has the id k and occurs `counts[k]` times, the most frequent first."""

    path: Path
    words: tuple[str, ...]
    counts: npt.NDArray[np.int64]
    num_contexts: int
    sha256: str
    final_ids: Ids = field(repr=False)  # by temporary id; _NO_VECTOR for words without a vector

    @property
    def num_words(self) -> int:
        """The number of occurrences of words with a vector."""
        return int(self.counts.sum())

    def chunks(self, size: int = _CHUNK) -> Iterator[Ids]:
        """Yield the ids of all words in order, with END after each context, about `size` at a time."""
        num_ids = self.path.stat().st_size // 4
        for start in range(0, num_ids, size):
            temporary_ids = np.fromfile(self.path, np.int32, size, offset=4 * start)
            ids = np.where(temporary_ids == END, np.int32(END), self.final_ids[temporary_ids])
            yield ids[ids != _NO_VECTOR]

    def contexts(self, max_words: int) -> Iterator[list[str]]:
        """Yield the contexts as lists of words, split if they have more than `max_words`."""
        words = np.array(self.words, dtype=object)
        remainder = np.zeros(0, dtype=np.int32)
        for chunk in self.chunks():
            *complete, remainder = np.split(ids := np.concatenate([remainder, chunk]), np.flatnonzero(ids == END) + 1)
            for context in complete:
                yield from _split_context(words[context[:-1]].tolist(), max_words)
        yield from _split_context(words[remainder].tolist(), max_words)


def _split_context(words: list[str], max_words: int) -> Iterator[list[str]]:
    for start in range(0, len(words), max_words):
        yield words[start : start + max_words]


class WordStreamWriter:
    """Writes the ids of words to a file and counts them. A context manager."""

    def __init__(self, path: Path, counts: Counts, num_distinct: int = NUM_DISTINCT) -> None:
        self._path, self._statistics, self._num_distinct = path, counts, num_distinct
        self._word_ids = _WordIds()
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
        """Write contexts, each as words separated by single spaces."""
        flat: list[int] = []
        word_to_id = self._word_ids.__getitem__
        for context in contexts:
            flat.extend(map(word_to_id, context.split(" ")))
            flat.append(END)
            self._hash.update(context.encode(errors="surrogatepass") + b"\n")
            self._num_contexts += 1
        ids = np.array(flat, dtype=np.int32)
        ids.tofile(self._file)
        counts = np.bincount(ids[ids != END], minlength=self._word_ids.num_assigned)
        counts[: len(self._counts)] += self._counts
        self._counts = counts
        while len(self._word_ids) > self._num_distinct:
            self._prune()

    def finish(self, settings: WordSettings) -> WordStream:
        """Select the words with a vector, by descending frequency; ties are sorted by word."""
        self._file.close()
        frequent = [
            (-int(self._counts[word_id]), word, word_id)
            for word, word_id in self._word_ids.items()
            if self._counts[word_id] >= settings.min_count
        ]
        selected = sorted(frequent)[: settings.max_words or None]
        if not selected:
            raise InputError(
                f"none of the {len(self._word_ids)} distinct words occurs {settings.min_count} times or more; give "
                f"more text, or a smaller --min-count"
            )
        num_selected = -sum(count for count, _, _ in selected)
        if num_left_out := int(self._counts.sum()) - num_selected:
            self._statistics["words left out: too rare for a vector"] += num_left_out
        final_ids = np.full(len(self._counts), _NO_VECTOR, dtype=np.int32)
        final_ids[[word_id for _, _, word_id in selected]] = np.arange(len(selected), dtype=np.int32)
        return WordStream(
            path=self._path,
            words=tuple(word for _, word, _ in selected),
            counts=np.array([-count for count, _, _ in selected], dtype=np.int64),
            num_contexts=self._num_contexts,
            sha256=self._hash.hexdigest(),
            final_ids=final_ids,
        )

    def _prune(self) -> None:
        """Remove the rarest words. The threshold rises by one per round, and frequent words soon exceed it."""
        self._floor += 1
        rare = {word: word_id for word, word_id in self._word_ids.items() if self._counts[word_id] <= self._floor}
        for word, word_id in rare.items():
            self._statistics["words left out: too many distinct words"] += int(self._counts[word_id])
            self._counts[word_id] = 0
            del self._word_ids[word]
