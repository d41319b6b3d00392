"""Byte-pair merges: words as symbols with their counts in, merges in the order they are learned out.

This is byte-pair encoding, and WordPiece as it is trained outside Google. The trainer of `tokenizers` numbers
"##" symbols in the order of a hash table, so ties are broken differently in every run; and it does not take counted
words, so it must process every occurrence. Here ties always go to the pair with the smaller symbols.

N symbols of all distinct words, concatenated, with a border after each word.
Memory: under 100 bytes per symbol at the peak, when pairs are first sorted.
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
# A pair is packed into one integer, left * 2^32 + right, which sorts like the pair.
_SHIFT = 32


@dataclass(frozen=True, slots=True)
class Merges:
    """Merges as pairs of symbols, and all symbols: the initial ones, then the merged ones in the order of creation."""

    symbols: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]


def learn_merges(
    words: Iterable[tuple[Iterable[int], int]],
    symbols: Sequence[str],
    join: Callable[[str, str], str],
    num_new: int,
    min_count: int,
) -> Merges:
    """Merge the most frequent pair of neighbors until `num_new` symbols are created or no pair is frequent enough.

    A word is a list of indices into `symbols`, or BORDER where nothing may be merged, and its count.
    """
    symbol_list = _SymbolList.from_words(words)
    ids = {symbol: symbol_id for symbol_id, symbol in enumerate(symbols)}
    all_symbols, pairs = list(symbols), []
    max_symbols = len(all_symbols) + num_new
    while len(all_symbols) < max_symbols and (pair := symbol_list.most_frequent_pair(min_count)) is not None:
        left, right = pair
        new_symbol = join(all_symbols[left], all_symbols[right])
        new_id = ids.setdefault(new_symbol, len(all_symbols))
        if new_id == len(all_symbols):
            all_symbols.append(new_symbol)
        pairs.append((all_symbols[left], all_symbols[right]))
        symbol_list.merge(left, right, new_id)
    return Merges(tuple(all_symbols), tuple(pairs))


@dataclass(slots=True, kw_only=True)
class _SymbolList:
    """The words as a linked list in arrays, with the positions and the count of each pair."""

    symbol: Positions  # (N,) symbol id, BORDER or _TOMBSTONE
    next_position: Positions  # (N,)
    previous_position: Positions  # (N,)
    weight: Integers  # (N,) count of the word
    merge_mask: npt.NDArray[np.bool_]  # (N,) the positions of the current merge
    pair_positions: dict[int, list[Positions]] = field(default_factory=dict)
    pair_counts: dict[int, int] = field(default_factory=dict)
    heap: list[tuple[int, int]] = field(default_factory=list)

    @staticmethod
    def from_words(words: Iterable[tuple[Iterable[int], int]]) -> _SymbolList:
        # Arrays instead of lists: a tenth of the memory.
        flat, ends, counts = array("i", [BORDER]), array("q", [1]), array("q")
        for word, count in words:
            flat.extend(word)
            flat.append(BORDER)
            ends.append(len(flat))
            counts.append(count)
        symbol = np.array(flat, np.int32)
        weight = np.repeat(np.array([0, *counts], np.int64), np.diff(ends, prepend=0))
        position = np.arange(len(symbol), dtype=np.int32)
        result = _SymbolList(
            symbol=symbol,
            next_position=position + 1,
            previous_position=position - 1,
            weight=weight,
            merge_mask=np.zeros(len(symbol), np.bool_),
        )
        first = np.flatnonzero((symbol[:-1] >= 0) & (symbol[1:] >= 0)).astype(np.int32)
        result._add(_pack_pairs(symbol[first], symbol[first + 1]), first)
        return result

    def most_frequent_pair(self, min_count: int) -> tuple[int, int] | None:
        """Return the most frequent pair; ties go to the smaller left, then the smaller right symbol."""
        while self.heap:
            negative_count, pair = heapq.heappop(self.heap)
            count = self.pair_counts.get(pair, 0)
            if count == -negative_count:
                return (pair >> _SHIFT, pair & (2**_SHIFT - 1)) if count >= max(1, min_count) else None
            if count > 0:  # the count fell since it was pushed
                heapq.heappush(self.heap, (-count, pair))
        return None

    def merge(self, left: int, right: int, new: int) -> None:
        """Replace each pair (left, right) by `new`, and update the counts of the neighboring pairs."""
        pair = (left << _SHIFT) + right
        del self.pair_counts[pair]
        positions = self._find_pair(self.pair_positions.pop(pair), left, right)
        self.merge_mask[positions] = True
        self._remove(positions, pair)
        second = self.next_position[positions]
        after = self.next_position[second]
        self.symbol[positions] = new
        self.symbol[second] = _TOMBSTONE
        self.next_position[positions] = after
        self.previous_position[after] = positions
        self._add_neighbors(positions)
        self.merge_mask[positions] = False

    def _find_pair(self, candidates: list[Positions], left: int, right: int) -> Positions:
        positions = np.sort(np.concatenate(candidates))
        positions = positions[(self.symbol[positions] == left) & (self.symbol[self.next_position[positions]] == right)]
        return positions if left != right else self._non_overlapping(positions)

    def _non_overlapping(self, positions: Positions) -> Positions:
        # "aaa" contains "aa" twice, but only the first can be merged.
        selected: list[int] = []
        end_of_last = -1
        for position in positions.tolist():
            if position != end_of_last:
                selected.append(position)
                end_of_last = int(self.next_position[position])
        return np.array(selected, np.int32)

    def _remove(self, positions: Positions, merged_pair: int) -> None:
        before = self.previous_position[positions]
        second = self.next_position[positions]
        after = self.next_position[second]
        has_before = self.symbol[before] >= 0
        # The pair between two adjacent merges is removed once: as the pair before the second.
        has_after = (self.symbol[after] >= 0) & ~self.merge_mask[after]
        pairs = np.concatenate(
            [
                _pack_pairs(self.symbol[before[has_before]], self.symbol[positions[has_before]]),
                _pack_pairs(self.symbol[second[has_after]], self.symbol[after[has_after]]),
            ]
        )
        weight = self.weight[np.concatenate([positions[has_before], positions[has_after]])]
        for pair, total, _ in _sum_by_pair(pairs, weight):
            if pair != merged_pair:
                self.pair_counts[pair] -= total

    def _add_neighbors(self, positions: Positions) -> None:
        before, after = self.previous_position[positions], self.next_position[positions]
        before = before[self.symbol[before] >= 0]
        positions_with_next = positions[(self.symbol[after] >= 0) & ~self.merge_mask[after]]
        start = np.concatenate([before, positions_with_next])
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
    """Yield each distinct pair, the sum of its weights, and its indices in `pairs`."""
    if len(pairs) == 0:
        return
    order = np.argsort(pairs, kind="stable")
    sorted_pairs = pairs[order]
    starts = np.concatenate([[0], np.flatnonzero(sorted_pairs[1:] != sorted_pairs[:-1]) + 1])
    sums = np.add.reduceat(weight[order], starts)
    ends = [*starts[1:].tolist(), len(order)]
    for pair, total, start, end in zip(
        sorted_pairs[starts].tolist(), sums.tolist(), starts.tolist(), ends, strict=True
    ):
        yield pair, total, order[start:end]
