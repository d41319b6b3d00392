"""Learn a unigram vocabulary: counted words in, pieces with their log probabilities out.

Expectation-maximisation as in Kudo's paper on subword regularisation (arXiv 1804.10959): start with many substrings,
give each the probability that makes the words likeliest, drop those which are missed least, repeat. `tokenizers` has it
too, but adds in the order its threads end, so that no two runs agree. Here words of one length are worked on side by
side in numpy.

Letters: W words of one length L, E spans (start, stop) of such a word, P pieces. Memory: about 16 bytes for each span
of a word, 1.5 GB at most for the most words that `training` hands over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int32]
Hashes = npt.NDArray[np.uint64]

# Probabilities are multiplied, not added as logarithms: 24 factors of 1e-12 still fit in a float64.
MAX_RUN_LENGTH = 24
MAX_TOKEN_LENGTH = 16
_SEEDS_PER_TOKEN = 10
_MAX_SEEDS = 1_000_000
_SHRINKING_FACTOR = 0.75
_NUM_SUB_ITERATIONS = 2
_MAX_BLOCK_WORDS = 20_000
# The paper's implementation drops pieces that are expected less than half a time.
_MIN_EXPECTED_COUNT = 0.5


def learn_unigram(words: Mapping[str, int], characters: Sequence[str], num_tokens: int) -> list[tuple[str, float]]:
    """At most `num_pieces` pieces and their scores, likeliest first. Every one of `characters` is among them.

    Words consist of `characters` only and are not longer than MAX_RUN_LENGTH.
    """
    blocks = _blocks(words)
    pieces, frequency = _seeds(blocks, characters, min(_MAX_SEEDS, _SEEDS_PER_TOKEN * num_tokens))
    table = _HashTable.from_tokens(pieces)
    lattices = [_Lattice.from_block(block, table) for block in blocks]
    probability = frequency / frequency.sum()
    goal = int(1.1 * num_tokens)
    while True:
        for _ in range(_NUM_SUB_ITERATIONS):
            expected = _expected_counts(lattices, probability)
            kept = (expected >= _MIN_EXPECTED_COUNT) | _is_single_character(pieces)
            pieces, expected = _select_tokens(pieces, expected, kept, lattices)
            probability = _estimate_probability(expected)
        if len(pieces) <= goal:
            break
        kept = _prune_mask(pieces, expected, probability, max(goal, int(_SHRINKING_FACTOR * len(pieces))))
        pieces, probability = _select_tokens(pieces, probability, kept, lattices)
    return _finalize(pieces, probability, num_tokens)


# ---------------------------------------------------------------- words as arrays


@dataclass(frozen=True, slots=True)
class _WordBlock:
    """Words of one length: hashes of their beginnings, and how often each word occurs."""

    words: list[str]  # (W)
    prefix: Hashes  # (L + 1, W)
    weight: Floats  # (W,)

    @property
    def length(self) -> int:
        return len(self.prefix) - 1

    def hashes(self, start: int, stop: int) -> Hashes:
        result: Hashes = self.prefix[stop] - self.prefix[start] * _POWERS[stop - start]
        return result  # (W,)


# Polynomial hashes modulo 2^64: two of ten million substrings share one with a chance of a few in a million, and then
# they merely share a probability.
_BASE = 0x9E3779B97F4A7C15
_POWERS: Hashes = np.array([pow(_BASE, n, 2**64) for n in range(MAX_RUN_LENGTH + 1)], np.uint64)


def _hash_characters(codes: npt.NDArray[np.uint32]) -> Hashes:
    """A random-looking 64-bit number for each character (the finisher of splitmix64)."""
    mixed = codes.astype(np.uint64) * np.uint64(_BASE)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: Hashes = mixed ^ (mixed >> np.uint64(31))
    return result


def _blocks(words: Mapping[str, int]) -> list[_WordBlock]:
    """Words of equal length together, at most _ROWS in a block; the order depends on the words alone."""
    blocks = []
    for length, same in groupby(sorted(words, key=lambda word: (len(word), word)), key=len):
        of_length = list(same)
        for first in range(0, len(of_length), _MAX_BLOCK_WORDS):
            rows = of_length[first : first + _MAX_BLOCK_WORDS]
            codes = np.frombuffer("".join(rows).encode("utf-32-le"), np.uint32).reshape(-1, length)
            scattered = _hash_characters(codes)
            prefix = np.zeros((length + 1, len(rows)), np.uint64)
            for place in range(length):
                prefix[place + 1] = prefix[place] * np.uint64(_BASE) + scattered[:, place]
            blocks.append(_WordBlock(rows, prefix, np.array([words[word] for word in rows], np.float64)))
    return blocks


def _spans(length: int) -> list[tuple[int, int]]:
    """All spans short enough for a piece, by their end: what `forward` needs first comes first."""
    return [(start, stop) for stop in range(1, length + 1) for start in range(max(0, stop - MAX_TOKEN_LENGTH), stop)]


def _seeds(blocks: list[_WordBlock], characters: Sequence[str], num_seeds: int) -> tuple[list[str], Floats]:
    """Substrings with the greatest count times length, and all characters; and how often each occurs."""
    found: list[tuple[float, str, float]] = []
    for size in range(2, MAX_TOKEN_LENGTH + 1):
        found.extend(_frequent_substrings(blocks, size, num_seeds))
        found = sorted(found, key=lambda seed: (-seed[0], seed[1]))[:num_seeds]
    occurrences = dict.fromkeys(characters, 1.0)
    for block in blocks:
        for word, weight in zip(block.words, block.weight.tolist(), strict=True):
            for character in word:
                occurrences[character] += weight
    pieces = [*occurrences, *(piece for _, piece, _ in found)]
    return pieces, np.array([*occurrences.values(), *(count for _, _, count in found)], np.float64)


def _frequent_substrings(blocks: list[_WordBlock], size: int, num_seeds: int) -> Iterator[tuple[float, str, float]]:
    """The most frequent substrings of that size, at least twice each: count times size, text, count."""
    places = [(number, start) for number, block in enumerate(blocks) for start in range(block.length - size + 1)]
    if not places:
        return
    hashes = np.concatenate([blocks[number].hashes(start, start + size) for number, start in places])
    weight = np.concatenate([blocks[number].weight for number, _ in places])
    ends = np.cumsum([len(blocks[number].weight) for number, _ in places])
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    counts = np.bincount(inverse, weight)
    often = np.argsort(-counts, kind="stable")[:num_seeds]
    often = often[counts[often] >= 2]
    which = np.searchsorted(ends, first[often], side="right")
    rows = first[often] - np.append(0, ends)[which]
    for count, place, row in zip(counts[often].tolist(), which.tolist(), rows.tolist(), strict=True):
        number, start = places[place]
        yield count * size, blocks[number].words[row][start : start + size], count


# ---------------------------------------------------------------- words as lattices of pieces


@dataclass(frozen=True, slots=True)
class _HashTable:
    """From the hash of a substring to the number of its piece; P where there is none."""

    hashes: Hashes  # (P,) ascending
    token_indices: Numbers  # (P,)

    @staticmethod
    def from_tokens(tokens: Sequence[str]) -> _HashTable:
        place = {piece: number for number, piece in enumerate(tokens)}
        hashes = np.zeros(len(tokens), np.uint64)
        for block in _blocks(dict.fromkeys(tokens, 0)):
            hashes[[place[word] for word in block.words]] = block.hashes(0, block.length)
        order = np.argsort(hashes, kind="stable")
        return _HashTable(hashes[order], order.astype(np.int32))

    def look_up(self, hashes: Hashes) -> Numbers:
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.where(self.hashes[at] == hashes, self.token_indices[at], np.int32(len(self.hashes))).astype(np.int32)


@dataclass(slots=True)
class _Lattice:
    """Every way to cut the words of one block into pieces."""

    length: int
    weight: Floats  # (W,)
    spans: list[tuple[int, int]]  # (E)
    token_indices: Numbers  # (E, W) the piece on a span, or P for none

    @staticmethod
    def from_block(block: _WordBlock, table: _HashTable) -> _Lattice:
        spans = _spans(block.length)
        numbers = np.stack([table.look_up(block.hashes(start, stop)) for start, stop in spans])
        return _Lattice(block.length, block.weight, spans, numbers)

    def expected_counts(self, probability: Floats) -> Floats:
        """How often each piece is expected in these words; `probability` ends with a 0 for no piece."""
        on_span = probability[self.token_indices]  # (E, W)
        forward = np.zeros((self.length + 1, len(self.weight)))
        backward = np.zeros_like(forward)
        forward[0] = backward[self.length] = 1
        for number, (start, stop) in enumerate(self.spans):
            forward[stop] += forward[start] * on_span[number]
        # By descending start, what lies behind a span is complete before the span is used.
        for number in sorted(range(len(self.spans)), key=lambda number: -self.spans[number][0]):
            start, stop = self.spans[number]
            backward[start] += on_span[number] * backward[stop]
        share = self.weight / forward[self.length]  # (W,)
        for number, (start, stop) in enumerate(self.spans):
            on_span[number] *= forward[start] * backward[stop] * share
        return np.bincount(self.token_indices.ravel(), on_span.ravel(), len(probability)).astype(np.float64, copy=False)

    def best_split(self, log_probability: Floats) -> tuple[Floats, Numbers]:
        """The score of the best way to cut each word in two or more, and its pieces: (W,), (L, W) filled up with P."""
        none = len(log_probability) - 1
        best = np.full((self.length + 1, len(self.weight)), -np.inf)
        best[0] = 0
        last = np.zeros((self.length + 1, len(self.weight)), np.int32)
        for number, (start, stop) in enumerate(self.spans):
            if (start, stop) == (0, self.length):
                continue
            score = best[start] + log_probability[self.token_indices[number]]
            better = score > best[stop]
            best[stop] = np.where(better, score, best[stop])
            last[stop] = np.where(better, np.int32(number), last[stop])
        pieces = np.full((self.length, len(self.weight)), none, np.int32)
        starts = np.array([start for start, _ in self.spans])
        end, row = np.full(len(self.weight), self.length), np.arange(len(self.weight))
        for place in range(self.length):
            span = last[end, row]
            pieces[place] = np.where(end > 0, self.token_indices[span, row], none)
            end = np.where(end > 0, starts[span], 0)
        return best[self.length], pieces


# ---------------------------------------------------------------- the steps


def _expected_counts(lattices: list[_Lattice], probability: Floats) -> Floats:
    padded = np.append(probability, 0.0)
    total = np.zeros_like(padded)
    for lattice in lattices:
        total += lattice.expected_counts(padded)
    return total[:-1]


def _estimate_probability(expected_counts: Floats) -> Floats:
    # The digamma function instead of the logarithm favours few pieces (a Dirichlet prior), as in the paper's code.
    floored = np.maximum(expected_counts, _MIN_EXPECTED_COUNT)
    result: Floats = np.exp(_digamma(floored) - _digamma(floored.sum(keepdims=True)))
    return result


def _digamma(x: Floats) -> Floats:
    result = np.zeros_like(x)
    x = x.copy()
    for _ in range(7):  # climb to where the series holds to 1e-10
        small = x < 7
        result = np.where(small, result - 1 / x, result)
        x = np.where(small, x + 1, x)
    square = 1 / (x * x)
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240)))
    total: Floats = result + np.log(x) - 0.5 / x - series
    return total


def _is_single_character(tokens: list[str]) -> npt.NDArray[np.bool_]:
    return np.fromiter((len(piece) == 1 for piece in tokens), np.bool_, len(tokens))


def _select_tokens(
    tokens: list[str], values: Floats, keep_mask: npt.NDArray[np.bool_], lattices: list[_Lattice]
) -> tuple[list[str], Floats]:
    """Pieces and values without those dropped; the lattices forget them too."""
    chosen = np.flatnonzero(keep_mask)
    renumbered = np.full(len(tokens) + 1, len(chosen), np.int32)
    renumbered[chosen] = np.arange(len(chosen), dtype=np.int32)
    for lattice in lattices:
        lattice.token_indices = renumbered[lattice.token_indices]
    return [tokens[number] for number in chosen.tolist()], values[chosen]


def _prune_mask(
    tokens: list[str], expected_counts: Floats, probability: Floats, num_remaining: int
) -> npt.NDArray[np.bool_]:
    """Keep the characters, and those pieces whose loss would make the words least likely."""
    place = {piece: number for number, piece in enumerate(tokens)}
    table = _HashTable.from_tokens(tokens)
    log_probability = np.append(np.log(probability), -np.inf)
    loss = np.full(len(tokens), -np.inf)
    total = expected_counts.sum()
    padded = np.append(expected_counts, 0.0)
    for block in _blocks(dict.fromkeys((piece for piece in tokens if len(piece) > 1), 0)):
        score, instead = _Lattice.from_block(block, table).best_split(log_probability)
        number = np.array([place[word] for word in block.words])
        own = expected_counts[number]
        used = instead != len(tokens)  # (L, W)
        total_without = total + own * (used.sum(axis=0) - 1)
        joined = np.where(used, np.log(padded[instead] + own) - np.log(total_without), 0).sum(axis=0)
        missed = own * (np.log(own / total) - joined)
        loss[number] = np.where(score >= log_probability[number], -np.inf, missed)
    single = _is_single_character(tokens)
    loss[single] = np.inf
    order = np.argsort(-loss, kind="stable")
    kept = np.zeros(len(tokens), np.bool_)
    kept[order[: max(num_remaining, int(single.sum()))]] = True
    return kept & (loss > -np.inf)


def _finalize(tokens: list[str], probability: Floats, num_tokens: int) -> list[tuple[str, float]]:
    # Six decimals: enough for a choice, and no last bit of a library's logarithm shows.
    scored = [(piece, round(float(score), 6)) for piece, score in zip(tokens, np.log(probability), strict=True)]
    scored.sort(key=lambda one: (-one[1], one[0]))
    room = num_tokens - sum(len(piece) == 1 for piece, _ in scored)
    kept = []
    for piece, score in scored:
        if len(piece) > 1:
            room -= 1
        if len(piece) == 1 or room >= 0:
            kept.append((piece, score))
    return kept
