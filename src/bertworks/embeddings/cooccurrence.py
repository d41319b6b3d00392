"""Co-occurrence counts: word ids in, the weighted count of each pair of nearby words out, in bounded memory.

A pair at distance d counts 1/d, in both orders. Pairs are collected in memory, summed, and written to a sorted run on
disk when the memory is full; the runs are then merged block by block. Counts are integer multiples of 2^-24: their sums
are exact in any order, so the result depends neither on the memory nor on how the text is split into chunks.

V words, W window size. A pair (a, b) with a <= b has the key a * V + b. A pair of a word with itself counts twice: once
for each order, as any other pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bertworks.embeddings.word_stream import END, Ids

# The count of a pair at distance 1.
UNIT = 2**24
# Memory per pair while pairs are sorted and summed: key, count, sort order, and copies of these.
BYTES_PER_PAIR = 64


class PairCounts(NamedTuple):
    """Unique keys in ascending order, and their counts in multiples of 1 / UNIT."""

    keys: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]


def max_pairs_in_memory(memory_mb: int) -> int:
    """Return how many pairs fit in memory."""
    return memory_mb * 2**20 // BYTES_PER_PAIR


class PairCounter:
    """Counts pairs in chunks of word ids; `iter_sorted` then yields all of them by ascending key.

    At most `max_pairs` are in memory at once. Runs on disk are written to `folder`.
    """

    def __init__(self, num_words: int, window: int, folder: Path, max_pairs: int) -> None:
        self._num_words, self._window, self._folder = num_words, window, folder
        self._max_pairs = max_pairs
        self._tail = np.zeros(0, dtype=np.int64)  # the last words of the context at the end of the chunk
        self._buffer: list[PairCounts] = []
        self._runs: list[_SortedRun] = []

    @property
    def chunk_size(self) -> int:
        """The maximum number of words of a chunk."""
        return max(1, self._max_pairs // (4 * self._window))

    def add(self, chunk: Ids) -> None:
        """Count the pairs whose second word is in the chunk; the first may be in the previous chunk."""
        is_end = chunk == END
        contexts = np.cumsum(is_end)[~is_end]
        words = np.concatenate([self._tail, chunk[~is_end].astype(np.int64)])
        contexts = np.concatenate([np.zeros(len(self._tail), dtype=np.int64), contexts])
        keys = self._keys(words, contexts, len(self._tail))
        self._tail = words[contexts == np.count_nonzero(is_end)][-self._window :]
        self._buffer.append(self._sum_by_distance(keys))
        if sum(len(pairs.keys) for pairs in self._buffer) > self._max_pairs // 2:
            self._buffer = [_merge(self._buffer)]
            if len(self._buffer[0].keys) > self._max_pairs // 4:
                self._spill()

    def iter_sorted(self) -> Iterator[PairCounts]:
        """Yield all pairs in blocks, by ascending key."""
        runs = [_RunReader(run) for run in self._runs]
        if self._buffer:
            runs.append(_RunReader(_merge(self._buffer)))
        buffer_size = max(1, self._max_pairs // (2 * max(1, len(runs))))
        while True:
            for run in runs:
                run.fill(buffer_size)
            if not any(len(run.buffer.keys) for run in runs):
                return
            # Up to the smallest last key of the buffers, every pair of every run is in its buffer.
            limit = min((run.buffer.keys[-1] for run in runs if not run.is_exhausted), default=np.iinfo(np.int64).max)
            yield _merge([run.take(limit) for run in runs])

    def num_pairs(self) -> int:
        """Return an upper bound on the number of pairs: one that is in several runs is counted in each."""
        return sum(map(len, self._runs)) + sum(len(pairs.keys) for pairs in self._buffer)

    def _keys(
        self, words: npt.NDArray[np.int64], contexts: npt.NDArray[np.int64], num_old: int
    ) -> npt.NDArray[np.int64]:
        """Return the key of each pair occurrence, with distance - 1 in its lowest bits."""
        bits = (self._window - 1).bit_length()
        keys = []
        for distance in range(1, min(self._window, len(words) - 1) + 1):
            start = max(num_old, distance)  # index of the first second word
            second, first = words[start:], words[start - distance : len(words) - distance]
            is_same_context = contexts[start:] == contexts[start - distance : len(words) - distance]
            second, first = second[is_same_context], first[is_same_context]
            pairs = np.minimum(second, first) * self._num_words + np.maximum(second, first)
            keys.append((pairs << bits) | (distance - 1))
        return np.concatenate(keys) if keys else np.zeros(0, dtype=np.int64)

    def _sum_by_distance(self, keys: npt.NDArray[np.int64]) -> PairCounts:
        """Sum 1/distance over equal pairs. A sort of plain integers is several times as fast as an argsort."""
        bits = (self._window - 1).bit_length()
        keys.sort()
        weights = np.array([round(UNIT / distance) for distance in range(1, self._window + 1)], dtype=np.int64)
        counts = weights[keys & ((1 << bits) - 1)]
        keys >>= bits
        pairs = _sum_duplicates(keys, counts)
        is_same_word = pairs.keys // self._num_words == pairs.keys % self._num_words
        pairs.counts[is_same_word] *= 2
        return pairs

    def _spill(self) -> None:
        (pairs,) = self._buffer
        self._runs.append(_SortedRun.write(self._folder / f"{len(self._runs):06d}.run", pairs))
        self._buffer = []


@dataclass(frozen=True, slots=True)
class _SortedRun:
    """Sorted pairs on disk: all keys, then all counts. Read explicitly and not memory-mapped, to control memory."""

    path: Path
    length: int

    @classmethod
    def write(cls, path: Path, pairs: PairCounts) -> _SortedRun:
        with path.open("wb") as file:
            pairs.keys.tofile(file)
            pairs.counts.tofile(file)
        return cls(path, len(pairs.keys))

    def __len__(self) -> int:
        return self.length

    def between(self, start: int, stop: int) -> PairCounts:
        byte_offsets = (8 * start, 8 * (self.length + start))
        return PairCounts(*(np.fromfile(self.path, np.int64, stop - start, offset=offset) for offset in byte_offsets))


class _RunReader:
    """Sorted pairs, on disk or in memory, with a read-ahead buffer."""

    def __init__(self, pairs: _SortedRun | PairCounts) -> None:
        self._pairs = pairs
        self._length = len(pairs) if isinstance(pairs, _SortedRun) else len(pairs.keys)
        self._offset = 0
        self.buffer = PairCounts(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))

    @property
    def is_exhausted(self) -> bool:
        """Whether all pairs have been read into the buffer."""
        return self._offset == self._length

    def fill(self, count: int) -> None:
        """Fill the buffer up to `count` pairs, if there are as many."""
        stop = min(self._length, self._offset + count - len(self.buffer.keys))
        if stop > self._offset:
            new_pairs = self._between(self._offset, stop)
            self.buffer = PairCounts(*(np.concatenate(parts) for parts in zip(self.buffer, new_pairs, strict=True)))
            self._offset = stop

    def take(self, limit: np.int64 | int) -> PairCounts:
        """Remove and return the buffered pairs with keys up to `limit`."""
        end = int(np.searchsorted(self.buffer.keys, limit, side="right"))
        pairs = PairCounts(self.buffer.keys[:end], self.buffer.counts[:end])
        self.buffer = PairCounts(self.buffer.keys[end:], self.buffer.counts[end:])
        return pairs

    def _between(self, start: int, stop: int) -> PairCounts:
        if isinstance(self._pairs, _SortedRun):
            return self._pairs.between(start, stop)
        return PairCounts(self._pairs.keys[start:stop], self._pairs.counts[start:stop])


def _merge(parts: Iterable[PairCounts]) -> PairCounts:
    """Merge sorted pairs; the counts of equal keys are added."""
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    keys = np.concatenate([pairs.keys for pairs in parts])
    order = np.argsort(keys, kind="stable")  # fast on sorted runs
    return _sum_duplicates(keys[order], np.concatenate([pairs.counts for pairs in parts])[order])


def _sum_duplicates(keys: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> PairCounts:
    if not len(keys):
        return PairCounts(keys, counts)
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return PairCounts(keys[starts], np.add.reduceat(counts, starts))


_PAIR_DTYPE = np.dtype([("first", "<i4"), ("second", "<i4"), ("count", "<f4")])


class Rounds(NamedTuple):
    """P ordered pairs of words, in rounds within which no word occurs twice on the same side.

    Round k ends before pair `ends[k]`; none is empty.
    """

    firsts: npt.NDArray[np.int32]
    seconds: npt.NDArray[np.int32]
    counts: npt.NDArray[np.float32]
    ends: npt.NDArray[np.int64]


class ShuffledPairs:
    """All pairs on disk, distributed at random over as many files as needed for each to fit in memory.

    An epoch reads the files in random order and arranges the pairs of each in rounds: two random permutations of the
    words, one for each side, and the round of a pair is the sum of the images of its words modulo V. Two pairs of a
    round with the same word on one side would have the same word on the other, too. So no word occurs twice on one
    side, and a vectorized update over a round equals the updates of its pairs one by one.
    """

    def __init__(
        self, pairs: Iterable[PairCounts], num_words: int, num_files: int, folder: Path, generator: np.random.Generator
    ) -> None:
        self._paths = [folder / f"{index:06d}.pairs" for index in range(num_files)]
        self._num_words = num_words
        self.num_pairs = 0  # ordered pairs
        files = [path.open("wb") for path in self._paths]
        try:
            for block in pairs:
                rows = np.empty(len(block.keys), dtype=_PAIR_DTYPE)
                rows["first"], rows["second"] = np.divmod(block.keys, num_words)
                rows["count"] = block.counts / UNIT
                self.num_pairs += len(rows) + int(np.count_nonzero(rows["first"] != rows["second"]))
                file_indices = generator.integers(num_files, size=len(rows))
                for index, file in enumerate(files):
                    (rows if num_files == 1 else rows[file_indices == index]).tofile(file)
        finally:
            for file in files:
                file.close()

    def epoch(self, generator: np.random.Generator) -> Iterator[Rounds]:
        """Yield every pair once in each order, a file at a time; a pair of a word with itself has one order."""
        permutations = [generator.permutation(self._num_words) for _ in range(2)]
        for index in generator.permutation(len(self._paths)):
            rows = np.fromfile(self._paths[index], dtype=_PAIR_DTYPE)
            swapped = rows[rows["first"] != rows["second"]]
            firsts = np.concatenate([rows["first"], swapped["second"]])
            seconds = np.concatenate([rows["second"], swapped["first"]])
            rounds = (permutations[0][firsts] + permutations[1][seconds]) % self._num_words
            # a sort of plain integers is several times as fast as an argsort
            keys = np.sort((rounds << 32) | np.arange(len(rounds)))
            order = keys & (2**32 - 1)
            rounds = keys >> 32
            ends = np.flatnonzero(np.append(rounds[1:] != rounds[:-1], len(rounds) > 0)) + 1
            counts = np.concatenate([rows["count"], swapped["count"]])[order]
            yield Rounds(firsts[order], seconds[order], counts, ends)
