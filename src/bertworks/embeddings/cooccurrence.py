"""Numbered words in, how often each pair of words stands near each other out, in bounded memory.

Two words at a distance of d count 1/d, in both orders. Pairs are gathered in memory, summed, and written to a sorted
run on disk whenever the memory is full; runs are then merged block by block. Counts are whole numbers of 2^-24: sums of
these are exact in any order, so that the outcome does not depend on the memory or on where the text was cut.

V words, W the window. A pair (a, b) with a <= b is the key a * V + b. A word beside itself counts twice: once for each
order, as any two words do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bertworks.embeddings.word_stream import END, Ids

# What a distance of one counts.
UNIT = 2**24
# What a pair takes while it is sorted and summed: key, count, order, and copies of these.
BYTES_PER_PAIR = 64


class PairCounts(NamedTuple):
    """Keys in rising order, each once, and their counts in steps of 1 / UNIT."""

    keys: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]


def max_pairs_in_memory(memory_mb: int) -> int:
    """Return how many pairs may be at work at once."""
    return memory_mb * 2**20 // BYTES_PER_PAIR


class PairCounter:
    """Takes chunks of numbered words and counts pairs; `merged` then yields all of them in rising order.

    At most `most_pairs` are at work at once. Runs on disk go to `folder`.
    """

    def __init__(self, num_words: int, window: int, folder: Path, max_pairs: int) -> None:
        self._num_words, self._window, self._folder = num_words, window, folder
        self._max_pairs = max_pairs
        self._tail = np.zeros(0, dtype=np.int64)  # the last words of the stretch that the chunk ended in
        self._buffer: list[PairCounts] = []
        self._runs: list[_SortedRun] = []

    @property
    def chunk_size(self) -> int:
        """How many words a chunk may have."""
        return max(1, self._max_pairs // (4 * self._window))

    def add(self, chunk: Ids) -> None:
        """Count the pairs whose second word is in the chunk; the first may lie in the chunk before."""
        ends = chunk == END
        stretches = np.cumsum(ends)[~ends]
        words = np.concatenate([self._tail, chunk[~ends].astype(np.int64)])
        stretches = np.concatenate([np.zeros(len(self._tail), dtype=np.int64), stretches])
        keys = self._keys(words, stretches, len(self._tail))
        self._tail = words[stretches == np.count_nonzero(ends)][-self._window :]
        self._buffer.append(self._sum_by_distance(keys))
        if sum(len(pairs.keys) for pairs in self._buffer) > self._max_pairs // 2:
            self._buffer = [_merge(self._buffer)]
            if len(self._buffer[0].keys) > self._max_pairs // 4:
                self._spill()

    def iter_sorted(self) -> Iterator[PairCounts]:
        """Yield all pairs in rising order, some at a time."""
        runs = [_RunReader(run) for run in self._runs]
        if self._buffer:
            runs.append(_RunReader(_merge(self._buffer)))
        share = max(1, self._max_pairs // (2 * max(1, len(runs))))
        while True:
            for run in runs:
                run.fill(share)
            if not any(len(run.buffer.keys) for run in runs):
                return
            # Up to the least key at which a share ends, no run can hold anything that is not in its share.
            limit = min((run.buffer.keys[-1] for run in runs if not run.is_exhausted), default=np.iinfo(np.int64).max)
            yield _merge([run.take(limit) for run in runs])

    def num_pairs(self) -> int:
        """Return how many pairs there are at most: those that are in several runs are counted in each."""
        return sum(map(len, self._runs)) + sum(len(pairs.keys) for pairs in self._buffer)

    def _keys(
        self, words: npt.NDArray[np.int64], stretches: npt.NDArray[np.int64], num_old: int
    ) -> npt.NDArray[np.int64]:
        """Return a key for each pair that is met, with the distance less one in its lowest bits."""
        bits = (self._window - 1).bit_length()
        found = []
        for distance in range(1, min(self._window, len(words) - 1) + 1):
            first = max(num_old, distance)  # the first second word
            near, far = words[first:], words[first - distance : len(words) - distance]
            same = stretches[first:] == stretches[first - distance : len(words) - distance]
            near, far = near[same], far[same]
            pairs = np.minimum(near, far) * self._num_words + np.maximum(near, far)
            found.append((pairs << bits) | (distance - 1))
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def _sum_by_distance(self, keys: npt.NDArray[np.int64]) -> PairCounts:
        """Sum 1/distance over equal pairs: one sort of plain integers, which is several times as fast as an order."""
        bits = (self._window - 1).bit_length()
        keys.sort()
        worth = np.array([round(UNIT / distance) for distance in range(1, self._window + 1)], dtype=np.int64)
        counts = worth[keys & ((1 << bits) - 1)]
        keys >>= bits
        pairs = _sum_duplicates(keys, counts)
        itself = pairs.keys // self._num_words == pairs.keys % self._num_words
        pairs.counts[itself] *= 2
        return pairs

    def _spill(self) -> None:
        (pairs,) = self._buffer
        self._runs.append(_SortedRun.write(self._folder / f"{len(self._runs):06d}.run", pairs))
        self._buffer = []


@dataclass(frozen=True, slots=True)
class _SortedRun:
    """Sorted pairs on disk: all keys, then all counts. What is asked for is read, and nothing is mapped, so that memory
    is what it seems to be."""

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
        firsts = (8 * start, 8 * (self.length + start))
        return PairCounts(*(np.fromfile(self.path, np.int64, stop - start, offset=first) for first in firsts))


class _RunReader:
    """Sorted pairs, on disk or in memory, of which the next ones are `ahead`."""

    def __init__(self, pairs: _SortedRun | PairCounts) -> None:
        self._pairs = pairs
        self._length = len(pairs) if isinstance(pairs, _SortedRun) else len(pairs.keys)
        self._offset = 0
        self.buffer = PairCounts(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing is left behind what is ahead."""
        return self._offset == self._length

    def fill(self, count: int) -> None:
        """Have `share` pairs ahead, if there are so many."""
        stop = min(self._length, self._offset + count - len(self.buffer.keys))
        if stop > self._offset:
            more = self._between(self._offset, stop)
            self.buffer = PairCounts(*(np.concatenate(parts) for parts in zip(self.buffer, more, strict=True)))
            self._offset = stop

    def take(self, limit: np.int64 | int) -> PairCounts:
        """Return the pairs ahead whose keys are not above the limit; the others stay."""
        end = int(np.searchsorted(self.buffer.keys, limit, side="right"))
        taken = PairCounts(self.buffer.keys[:end], self.buffer.counts[:end])
        self.buffer = PairCounts(self.buffer.keys[end:], self.buffer.counts[end:])
        return taken

    def _between(self, start: int, stop: int) -> PairCounts:
        if isinstance(self._pairs, _SortedRun):
            return self._pairs.between(start, stop)
        return PairCounts(self._pairs.keys[start:stop], self._pairs.counts[start:stop])


def _merge(parts: Iterable[PairCounts]) -> PairCounts:
    """Merge sorted pairs; equal keys are added up."""
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    keys = np.concatenate([pairs.keys for pairs in parts])
    order = np.argsort(keys, kind="stable")  # quick on stretches that are in order already
    return _sum_duplicates(keys[order], np.concatenate([pairs.counts for pairs in parts])[order])


def _sum_duplicates(keys: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> PairCounts:
    if not len(keys):
        return PairCounts(keys, counts)
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return PairCounts(keys[starts], np.add.reduceat(counts, starts))


_PAIR_DTYPE = np.dtype([("first", "<i4"), ("second", "<i4"), ("count", "<f4")])


class Rounds(NamedTuple):
    """Ordered pairs of words, P of them, in rounds: in none of them a word stands twice on the same side.

    Round k ends before pair `ends[k]`; none is empty.
    """

    firsts: npt.NDArray[np.int32]
    seconds: npt.NDArray[np.int32]
    counts: npt.NDArray[np.float32]
    ends: npt.NDArray[np.int64]


class ShuffledPairs:
    """All pairs on disk, thrown at random into as many files as it takes for each to fit in memory.

    An epoch reads the files in an order of its own, and lays the pairs of each in rounds that are drawn anew: words are
    thrown on two clocks of V hours, one for the first and one for the second of a pair, and the round of a pair is the
    sum of its two hours. Two pairs of a round that share the word on one side would share that on the other, too: so no
    word stands there twice, and a round taken at once is the same as its pairs taken one after another.
    """

    def __init__(
        self, pairs: Iterable[PairCounts], num_words: int, num_files: int, folder: Path, generator: np.random.Generator
    ) -> None:
        self._paths = [folder / f"{number:06d}.pairs" for number in range(num_files)]
        self._num_words = num_words
        self.num_pairs = 0  # ordered ones
        files = [path.open("wb") for path in self._paths]
        try:
            for block in pairs:
                rows = np.empty(len(block.keys), dtype=_PAIR_DTYPE)
                rows["first"], rows["second"] = np.divmod(block.keys, num_words)
                rows["count"] = block.counts / UNIT
                self.num_pairs += len(rows) + int(np.count_nonzero(rows["first"] != rows["second"]))
                where = generator.integers(num_files, size=len(rows))
                for number, file in enumerate(files):
                    (rows if num_files == 1 else rows[where == number]).tofile(file)
        finally:
            for file in files:
                file.close()

    def epoch(self, generator: np.random.Generator) -> Iterator[Rounds]:
        """Yield every pair in both orders once, a file at a time; a word beside itself has one order only."""
        hours = [generator.permutation(self._num_words) for _ in range(2)]
        for number in generator.permutation(len(self._paths)):
            rows = np.fromfile(self._paths[number], dtype=_PAIR_DTYPE)
            others = rows[rows["first"] != rows["second"]]
            firsts = np.concatenate([rows["first"], others["second"]])
            seconds = np.concatenate([rows["second"], others["first"]])
            rounds = (hours[0][firsts] + hours[1][seconds]) % self._num_words
            # one sort of plain integers, which is several times as fast as an order
            keys = np.sort((rounds << 32) | np.arange(len(rounds)))
            order = keys & (2**32 - 1)
            rounds = keys >> 32
            ends = np.flatnonzero(np.append(rounds[1:] != rounds[:-1], len(rounds) > 0)) + 1
            counts = np.concatenate([rows["count"], others["count"]])[order]
            yield Rounds(firsts[order], seconds[order], counts, ends)
