"""Learn merges of neighbouring symbols: words as symbols with their counts in, merges in the order they are made out.

This is byte-pair encoding, and WordPiece as it is trained outside Google. `tokenizers` has it too, but numbers
"##"-symbols in the order of a hash table, so that ties fall differently in every run; and it cannot take counted words,
so that it must see every occurrence. Here ties go to the pair with the smaller symbols, always.

Letters: N symbols of all different words, one after another, with a border after each word.
Memory: at its peak, when pairs are first sorted, under 100 bytes for each of the N.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]

BORDER = -1
_GONE = -2
# A pair is one number, left * 2^32 + right: it sorts like the pair.
_SHIFT = 32


@dataclass(frozen=True, slots=True)
class Merges:
    """Merges as pairs of symbols, and all symbols: the given ones, then each new one when it was first made."""

    symbols: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]


def learn_merges(
    words: Iterable[tuple[Iterable[int], int]],
    symbols: Sequence[str],
    join: Callable[[str, str], str],
    num_new: int,
    min_count: int,
) -> Merges:
    """Join the most frequent pair of neighbours again and again, until `num_new` symbols are made or none is frequent.

    A word is a list of places in `symbols`, or BORDER where nothing may be joined, and how often it occurs.
    """
    text = _Symbols.of(words)
    known = {symbol: number for number, symbol in enumerate(symbols)}
    names, pairs = list(symbols), []
    goal = len(names) + num_new
    while len(names) < goal and (pair := text.best(min_count)) is not None:
        left, right = pair
        name = join(names[left], names[right])
        new = known.setdefault(name, len(names))
        if new == len(names):
            names.append(name)
        pairs.append((names[left], names[right]))
        text.merge(left, right, new)
    return Merges(tuple(names), tuple(pairs))


@dataclass(slots=True)
class _Symbols:
    """The words as a linked list in arrays, where each pair stands, and how often."""

    symbol: Places  # (N,) number of the symbol, BORDER or _GONE
    after: Places  # (N,) place of the next symbol
    before: Places  # (N,) place of the previous symbol
    weight: Integers  # (N,) how often the word occurs
    chosen: npt.NDArray[np.bool_]  # (N,) the places of the merge at work
    places: dict[int, list[Places]] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    heap: list[tuple[int, int]] = field(default_factory=list)

    @staticmethod
    def of(words: Iterable[tuple[Iterable[int], int]]) -> _Symbols:
        # Arrays grow word by word: lists of numbers would take ten times the memory.
        flat, ends, counts = array("i", [BORDER]), array("q", [1]), array("q")
        for word, count in words:
            flat.extend(word)
            flat.append(BORDER)
            ends.append(len(flat))
            counts.append(count)
        symbol = np.array(flat, np.int32)
        weight = np.repeat(np.array([0, *counts], np.int64), np.diff(ends, prepend=0))
        place = np.arange(len(symbol), dtype=np.int32)
        made = _Symbols(symbol, place + 1, place - 1, weight, np.zeros(len(symbol), np.bool_))
        inner = np.flatnonzero((symbol[:-1] >= 0) & (symbol[1:] >= 0)).astype(np.int32)
        made._add(_pairs(symbol[inner], symbol[inner + 1]), inner)
        return made

    def best(self, min_count: int) -> tuple[int, int] | None:
        """The most frequent pair; of equals the one with the smaller left, then right symbol."""
        while self.heap:
            negative, pair = heapq.heappop(self.heap)
            count = self.counts.get(pair, 0)
            if count == -negative:
                return (pair >> _SHIFT, pair & (2**_SHIFT - 1)) if count >= max(1, min_count) else None
            if count > 0:  # it lost occurrences since it was pushed
                heapq.heappush(self.heap, (-count, pair))
        return None

    def merge(self, left: int, right: int, new: int) -> None:
        """Put `new` wherever `left` stands before `right`, and count the neighbours anew."""
        pair = (left << _SHIFT) + right
        del self.counts[pair]
        place = self._standing(self.places.pop(pair), left, right)
        self.chosen[place] = True
        self._remove(place, pair)
        second = self.after[place]
        behind = self.after[second]
        self.symbol[place] = new
        self.symbol[second] = _GONE
        self.after[place] = behind
        self.before[behind] = place
        self._add_neighbours(place, new)
        self.chosen[place] = False

    def _standing(self, candidates: list[Places], left: int, right: int) -> Places:
        place = np.sort(np.concatenate(candidates))
        place = place[(self.symbol[place] == left) & (self.symbol[self.after[place]] == right)]
        return place if left != right else self._every_other(place)

    def _every_other(self, place: Places) -> Places:
        # "aaa" holds "aa" twice, but only the first can be joined.
        kept: list[int] = []
        taken = -1
        for here in place.tolist():
            if here != taken:
                kept.append(here)
                taken = int(self.after[here])
        return np.array(kept, np.int32)

    def _remove(self, place: Places, merged: int) -> None:
        front = self.before[place]
        second = self.after[place]
        behind = self.after[second]
        has_front = self.symbol[front] >= 0
        # Between two neighbouring merges lies one pair: it is taken away as the front of the second.
        has_behind = (self.symbol[behind] >= 0) & ~self.chosen[behind]
        pairs = np.concatenate(
            [
                _pairs(self.symbol[front[has_front]], self.symbol[place[has_front]]),
                _pairs(self.symbol[second[has_behind]], self.symbol[behind[has_behind]]),
            ]
        )
        weight = self.weight[np.concatenate([place[has_front], place[has_behind]])]
        for pair, total, _ in _totals(pairs, weight):
            if pair != merged:
                self.counts[pair] -= total

    def _add_neighbours(self, place: Places, new: int) -> None:
        front, behind = self.before[place], self.after[place]
        front = front[self.symbol[front] >= 0]
        here = place[(self.symbol[behind] >= 0) & ~self.chosen[behind]]
        start = np.concatenate([front, here])
        self._add(_pairs(self.symbol[start], self.symbol[self.after[start]]), start)

    def _add(self, pairs: Integers, start: Places) -> None:
        for pair, total, members in _totals(pairs, self.weight[start]):
            count = self.counts.get(pair, 0) + total
            self.counts[pair] = count
            self.places.setdefault(pair, []).append(start[members])
            heapq.heappush(self.heap, (-count, pair))


def _pairs(left: Places, right: Places) -> Integers:
    return (left.astype(np.int64) << _SHIFT) + right


def _totals(pairs: Integers, weight: Integers) -> Iterator[tuple[int, int, Integers]]:
    """Each different pair, the sum of its weights, and where it is in `pairs`."""
    if len(pairs) == 0:
        return
    order = np.argsort(pairs, kind="stable")
    ordered = pairs[order]
    starts = np.concatenate([[0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1])
    sums = np.add.reduceat(weight[order], starts)
    ends = [*starts[1:].tolist(), len(order)]
    for pair, total, start, end in zip(ordered[starts].tolist(), sums.tolist(), starts.tolist(), ends, strict=True):
        yield pair, total, order[start:end]
