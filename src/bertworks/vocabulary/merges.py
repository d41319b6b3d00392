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
Positions = npt.NDArray[np.int32]

BORDER = -1
_TOMBSTONE = -2
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
    text = _SymbolList.from_words(words)
    known = {symbol: number for number, symbol in enumerate(symbols)}
    names, pairs = list(symbols), []
    goal = len(names) + num_new
    while len(names) < goal and (pair := text.most_frequent_pair(min_count)) is not None:
        left, right = pair
        name = join(names[left], names[right])
        new = known.setdefault(name, len(names))
        if new == len(names):
            names.append(name)
        pairs.append((names[left], names[right]))
        text.merge(left, right, new)
    return Merges(tuple(names), tuple(pairs))


@dataclass(slots=True)
class _SymbolList:
    """The words as a linked list in arrays, where each pair stands, and how often."""

    symbol: Positions  # (N,) number of the symbol, BORDER or _GONE
    next_position: Positions  # (N,) place of the next symbol
    previous_position: Positions  # (N,) place of the previous symbol
    weight: Integers  # (N,) how often the word occurs
    merge_mask: npt.NDArray[np.bool_]  # (N,) the places of the merge at work
    pair_positions: dict[int, list[Positions]] = field(default_factory=dict)
    pair_counts: dict[int, int] = field(default_factory=dict)
    heap: list[tuple[int, int]] = field(default_factory=list)

    @staticmethod
    def from_words(words: Iterable[tuple[Iterable[int], int]]) -> _SymbolList:
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
        made = _SymbolList(symbol, place + 1, place - 1, weight, np.zeros(len(symbol), np.bool_))
        inner = np.flatnonzero((symbol[:-1] >= 0) & (symbol[1:] >= 0)).astype(np.int32)
        made._add(_pack_pairs(symbol[inner], symbol[inner + 1]), inner)
        return made

    def most_frequent_pair(self, min_count: int) -> tuple[int, int] | None:
        """The most frequent pair; of equals the one with the smaller left, then right symbol."""
        while self.heap:
            negative, pair = heapq.heappop(self.heap)
            count = self.pair_counts.get(pair, 0)
            if count == -negative:
                return (pair >> _SHIFT, pair & (2**_SHIFT - 1)) if count >= max(1, min_count) else None
            if count > 0:  # it lost occurrences since it was pushed
                heapq.heappush(self.heap, (-count, pair))
        return None

    def merge(self, left: int, right: int, new: int) -> None:
        """Put `new` wherever `left` stands before `right`, and count the neighbours anew."""
        pair = (left << _SHIFT) + right
        del self.pair_counts[pair]
        place = self._find_pair(self.pair_positions.pop(pair), left, right)
        self.merge_mask[place] = True
        self._remove(place, pair)
        second = self.next_position[place]
        behind = self.next_position[second]
        self.symbol[place] = new
        self.symbol[second] = _TOMBSTONE
        self.next_position[place] = behind
        self.previous_position[behind] = place
        self._add_neighbors(place, new)
        self.merge_mask[place] = False

    def _find_pair(self, candidates: list[Positions], left: int, right: int) -> Positions:
        place = np.sort(np.concatenate(candidates))
        place = place[(self.symbol[place] == left) & (self.symbol[self.next_position[place]] == right)]
        return place if left != right else self._non_overlapping(place)

    def _non_overlapping(self, positions: Positions) -> Positions:
        # "aaa" holds "aa" twice, but only the first can be joined.
        kept: list[int] = []
        taken = -1
        for here in positions.tolist():
            if here != taken:
                kept.append(here)
                taken = int(self.next_position[here])
        return np.array(kept, np.int32)

    def _remove(self, positions: Positions, merged_pair: int) -> None:
        front = self.previous_position[positions]
        second = self.next_position[positions]
        behind = self.next_position[second]
        has_front = self.symbol[front] >= 0
        # Between two neighbouring merges lies one pair: it is taken away as the front of the second.
        has_behind = (self.symbol[behind] >= 0) & ~self.merge_mask[behind]
        pairs = np.concatenate(
            [
                _pack_pairs(self.symbol[front[has_front]], self.symbol[positions[has_front]]),
                _pack_pairs(self.symbol[second[has_behind]], self.symbol[behind[has_behind]]),
            ]
        )
        weight = self.weight[np.concatenate([positions[has_front], positions[has_behind]])]
        for pair, total, _ in _sum_by_pair(pairs, weight):
            if pair != merged_pair:
                self.pair_counts[pair] -= total

    def _add_neighbors(self, positions: Positions, new: int) -> None:
        front, behind = self.previous_position[positions], self.next_position[positions]
        front = front[self.symbol[front] >= 0]
        here = positions[(self.symbol[behind] >= 0) & ~self.merge_mask[behind]]
        start = np.concatenate([front, here])
        self._add(_pack_pairs(self.symbol[start], self.symbol[self.next_position[start]]), start)

    def _add(self, pairs: Integers, positions: Positions) -> None:
        for pair, total, members in _sum_by_pair(pairs, self.weight[positions]):
            count = self.pair_counts.get(pair, 0) + total
            self.pair_counts[pair] = count
            self.pair_positions.setdefault(pair, []).append(positions[members])
            heapq.heappush(self.heap, (-count, pair))


def _pack_pairs(left: Positions, right: Positions) -> Integers:
    return (left.astype(np.int64) << _SHIFT) + right


def _sum_by_pair(pairs: Integers, weight: Integers) -> Iterator[tuple[int, int, Integers]]:
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
