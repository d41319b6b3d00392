"""Train a unigram vocabulary: counted words in, tokens with their log probabilities out.

Expectation-maximization as in Kudo's paper on subword regularization (arXiv 1804.10959): start with many substrings,
estimate the probabilities that maximize the likelihood of the words, remove the tokens that contribute least, repeat.
The trainer of `tokenizers` sums in the order its threads finish, so no two runs agree. Here words of equal length are
processed together in numpy.

W words of length L, E spans (start, stop) of such a word, V tokens. Memory: about 16 bytes per span of a word, at most
1.5 GB for the largest number of words that `training` passes.
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

# Probabilities are multiplied rather than added as logarithms: 24 factors of 1e-12 still fit in a float64.
MAX_RUN_LENGTH = 24
MAX_TOKEN_LENGTH = 16
_SEEDS_PER_TOKEN = 10
_MAX_SEEDS = 1_000_000
_SHRINKING_FACTOR = 0.75
_NUM_SUB_ITERATIONS = 2
_MAX_BLOCK_WORDS = 20_000
# SentencePiece removes tokens with an expected count below this.
_MIN_EXPECTED_COUNT = 0.5


def learn_unigram(words: Mapping[str, int], characters: Sequence[str], num_tokens: int) -> list[tuple[str, float]]:
    """Return at most `num_tokens` (token, score) by descending score. All of `characters` are among them.

    Words consist of `characters` and are not longer than MAX_RUN_LENGTH.
    """
    blocks = _blocks(words)
    tokens, frequency = _seeds(blocks, characters, min(_MAX_SEEDS, _SEEDS_PER_TOKEN * num_tokens))
    table = _HashTable.from_tokens(tokens)
    lattices = [_Lattice.from_block(block, table) for block in blocks]
    probability = frequency / frequency.sum()
    target_size = int(1.1 * num_tokens)
    while True:
        for _ in range(_NUM_SUB_ITERATIONS):
            expected = _expected_counts(lattices, probability)
            keep_mask = (expected >= _MIN_EXPECTED_COUNT) | _is_single_character(tokens)
            tokens, expected = _select_tokens(tokens, expected, keep_mask, lattices)
            probability = _estimate_probability(expected)
        if len(tokens) <= target_size:
            break
        num_remaining = max(target_size, int(_SHRINKING_FACTOR * len(tokens)))
        keep_mask = _prune_mask(tokens, expected, probability, num_remaining)
        tokens, probability = _select_tokens(tokens, probability, keep_mask, lattices)
    return _finalize(tokens, probability, num_tokens)


# ---------------------------------------------------------------- words as arrays


@dataclass(frozen=True, slots=True)
class _WordBlock:
    """Words of one length, the hashes of their prefixes, and their counts."""

    words: list[str]  # (W)
    prefix: Hashes  # (L + 1, W)
    weight: Floats  # (W,)

    @property
    def length(self) -> int:
        return len(self.prefix) - 1

    def hashes(self, start: int, stop: int) -> Hashes:
        result: Hashes = self.prefix[stop] - self.prefix[start] * _POWERS[stop - start]
        return result  # (W,)


# Polynomial hashes modulo 2^64: among ten million substrings a collision has a probability of a few in a million, and
# its only effect is that two substrings share a probability.
_BASE = 0x9E3779B97F4A7C15
_POWERS: Hashes = np.array([pow(_BASE, n, 2**64) for n in range(MAX_RUN_LENGTH + 1)], np.uint64)


def _hash_characters(codes: npt.NDArray[np.uint32]) -> Hashes:
    """Return a pseudo-random 64-bit number per character (the finalizer of SplitMix64)."""
    bits = codes.astype(np.uint64) * np.uint64(_BASE)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: Hashes = bits ^ (bits >> np.uint64(31))
    return result


def _blocks(words: Mapping[str, int]) -> list[_WordBlock]:
    """Group words of equal length, at most _MAX_BLOCK_WORDS per block, in an order that depends on the words alone."""
    blocks = []
    for length, group in groupby(sorted(words, key=lambda word: (len(word), word)), key=len):
        words_of_length = list(group)
        for first in range(0, len(words_of_length), _MAX_BLOCK_WORDS):
            block_words = words_of_length[first : first + _MAX_BLOCK_WORDS]
            codes = np.frombuffer("".join(block_words).encode("utf-32-le"), np.uint32).reshape(-1, length)
            hashes = _hash_characters(codes)  # (W, L)
            prefix = np.zeros((length + 1, len(block_words)), np.uint64)
            for index in range(length):
                prefix[index + 1] = prefix[index] * np.uint64(_BASE) + hashes[:, index]
            weight = np.array([words[word] for word in block_words], np.float64)
            blocks.append(_WordBlock(block_words, prefix, weight))
    return blocks


def _spans(length: int) -> list[tuple[int, int]]:
    """Return all spans short enough for a token, ordered by their end, as the forward pass needs them."""
    return [(start, stop) for stop in range(1, length + 1) for start in range(max(0, stop - MAX_TOKEN_LENGTH), stop)]


def _seeds(blocks: list[_WordBlock], characters: Sequence[str], num_seeds: int) -> tuple[list[str], Floats]:
    """Return the initial tokens (all characters, and substrings by count * length) and their counts."""
    substrings: list[tuple[float, str, float]] = []
    for size in range(2, MAX_TOKEN_LENGTH + 1):
        substrings.extend(_frequent_substrings(blocks, size, num_seeds))
        substrings = sorted(substrings, key=lambda seed: (-seed[0], seed[1]))[:num_seeds]
    occurrences = dict.fromkeys(characters, 1.0)
    for block in blocks:
        for word, weight in zip(block.words, block.weight.tolist(), strict=True):
            for character in word:
                occurrences[character] += weight
    tokens = [*occurrences, *(substring for _, substring, _ in substrings)]
    return tokens, np.array([*occurrences.values(), *(count for _, _, count in substrings)], np.float64)


def _frequent_substrings(blocks: list[_WordBlock], size: int, num_seeds: int) -> Iterator[tuple[float, str, float]]:
    """Yield (count * size, text, count) of the most frequent substrings of that size with a count of at least 2."""
    slots = [(block, start) for block in blocks for start in range(block.length - size + 1)]
    if not slots:
        return
    hashes = np.concatenate([block.hashes(start, start + size) for block, start in slots])
    weight = np.concatenate([block.weight for block, _ in slots])
    ends = np.cumsum([len(block.weight) for block, _ in slots])
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    counts = np.bincount(inverse, weight)
    frequent = np.argsort(-counts, kind="stable")[:num_seeds]
    frequent = frequent[counts[frequent] >= 2]
    slot_indices = np.searchsorted(ends, first[frequent], side="right")
    word_indices = first[frequent] - np.append(0, ends)[slot_indices]
    for count, slot, word in zip(counts[frequent].tolist(), slot_indices.tolist(), word_indices.tolist(), strict=True):
        block, start = slots[slot]
        yield count * size, block.words[word][start : start + size], count


# ---------------------------------------------------------------- words as lattices of tokens


@dataclass(frozen=True, slots=True)
class _HashTable:
    """Substring hash -> token index; V for a substring that is not a token."""

    hashes: Hashes  # (V,) ascending
    token_indices: Numbers  # (V,)

    @staticmethod
    def from_tokens(tokens: Sequence[str]) -> _HashTable:
        token_to_index = {token: index for index, token in enumerate(tokens)}
        hashes = np.zeros(len(tokens), np.uint64)
        for block in _blocks(dict.fromkeys(tokens, 0)):
            hashes[[token_to_index[word] for word in block.words]] = block.hashes(0, block.length)
        order = np.argsort(hashes, kind="stable")
        return _HashTable(hashes[order], order.astype(np.int32))

    def look_up(self, hashes: Hashes) -> Numbers:
        slots = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        is_token = self.hashes[slots] == hashes
        return np.where(is_token, self.token_indices[slots], np.int32(len(self.hashes))).astype(np.int32)


@dataclass(slots=True)
class _Lattice:
    """All tokenizations of the words of one block."""

    length: int
    weight: Floats  # (W,)
    spans: list[tuple[int, int]]  # (E)
    token_indices: Numbers  # (E, W) the token on a span, or V for none

    @staticmethod
    def from_block(block: _WordBlock, table: _HashTable) -> _Lattice:
        spans = _spans(block.length)
        token_indices = np.stack([table.look_up(block.hashes(start, stop)) for start, stop in spans])
        return _Lattice(block.length, block.weight, spans, token_indices)

    def expected_counts(self, probability: Floats) -> Floats:
        """Return the expected count of each token in these words; `probability` ends with a 0 for "no token"."""
        span_probability = probability[self.token_indices]  # (E, W)
        forward = np.zeros((self.length + 1, len(self.weight)))
        backward = np.zeros_like(forward)
        forward[0] = backward[self.length] = 1
        for index, (start, stop) in enumerate(self.spans):
            forward[stop] += forward[start] * span_probability[index]
        # By descending start, so that backward[stop] is complete before it is used.
        for index in sorted(range(len(self.spans)), key=lambda index: -self.spans[index][0]):
            start, stop = self.spans[index]
            backward[start] += span_probability[index] * backward[stop]
        scale = self.weight / forward[self.length]  # (W,)
        for index, (start, stop) in enumerate(self.spans):
            span_probability[index] *= forward[start] * backward[stop] * scale
        counts = np.bincount(self.token_indices.ravel(), span_probability.ravel(), len(probability))
        return counts.astype(np.float64, copy=False)

    def best_split(self, log_probability: Floats) -> tuple[Floats, Numbers]:
        """Return the best tokenization of each word into two or more tokens.

        Scores (W,), and the tokens (L, W) from last to first, padded with V.
        """
        no_token = len(log_probability) - 1
        best = np.full((self.length + 1, len(self.weight)), -np.inf)
        best[0] = 0
        last_span = np.zeros((self.length + 1, len(self.weight)), np.int32)
        for index, (start, stop) in enumerate(self.spans):
            if (start, stop) == (0, self.length):
                continue
            score = best[start] + log_probability[self.token_indices[index]]
            is_better = score > best[stop]
            best[stop] = np.where(is_better, score, best[stop])
            last_span[stop] = np.where(is_better, np.int32(index), last_span[stop])
        tokens = np.full((self.length, len(self.weight)), no_token, np.int32)
        span_starts = np.array([start for start, _ in self.spans])
        end, word = np.full(len(self.weight), self.length), np.arange(len(self.weight))
        for step in range(self.length):
            span = last_span[end, word]
            tokens[step] = np.where(end > 0, self.token_indices[span, word], no_token)
            end = np.where(end > 0, span_starts[span], 0)
        return best[self.length], tokens


# ---------------------------------------------------------------- steps of the training


def _expected_counts(lattices: list[_Lattice], probability: Floats) -> Floats:
    padded_probability = np.append(probability, 0.0)
    total = np.zeros_like(padded_probability)
    for lattice in lattices:
        total += lattice.expected_counts(padded_probability)
    return total[:-1]


def _estimate_probability(expected_counts: Floats) -> Floats:
    # The digamma function instead of the logarithm favors few tokens (a Dirichlet prior), as in SentencePiece.
    counts = np.maximum(expected_counts, _MIN_EXPECTED_COUNT)
    result: Floats = np.exp(_digamma(counts) - _digamma(counts.sum(keepdims=True)))
    return result


def _digamma(x: Floats) -> Floats:
    result = np.zeros_like(x)
    x = x.copy()
    for _ in range(7):  # recurrence up to where the series is accurate to 1e-10
        small = x < 7
        result = np.where(small, result - 1 / x, result)
        x = np.where(small, x + 1, x)
    square = 1 / (x * x)
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240)))
    total: Floats = result + np.log(x) - 0.5 / x - series
    return total


def _is_single_character(tokens: list[str]) -> npt.NDArray[np.bool_]:
    return np.fromiter((len(token) == 1 for token in tokens), np.bool_, len(tokens))


def _select_tokens(
    tokens: list[str], values: Floats, keep_mask: npt.NDArray[np.bool_], lattices: list[_Lattice]
) -> tuple[list[str], Floats]:
    """Remove the tokens outside `keep_mask`, with their values and in the lattices."""
    selected = np.flatnonzero(keep_mask)
    new_indices = np.full(len(tokens) + 1, len(selected), np.int32)
    new_indices[selected] = np.arange(len(selected), dtype=np.int32)
    for lattice in lattices:
        lattice.token_indices = new_indices[lattice.token_indices]
    return [tokens[index] for index in selected.tolist()], values[selected]


def _prune_mask(
    tokens: list[str], expected_counts: Floats, probability: Floats, num_remaining: int
) -> npt.NDArray[np.bool_]:
    """Return a mask of the characters and of the tokens whose removal would reduce the likelihood most."""
    token_to_index = {token: index for index, token in enumerate(tokens)}
    table = _HashTable.from_tokens(tokens)
    log_probability = np.append(np.log(probability), -np.inf)
    loss = np.full(len(tokens), -np.inf)
    total = expected_counts.sum()
    padded_counts = np.append(expected_counts, 0.0)
    for block in _blocks(dict.fromkeys((token for token in tokens if len(token) > 1), 0)):
        score, replacement = _Lattice.from_block(block, table).best_split(log_probability)
        index = np.array([token_to_index[word] for word in block.words])
        count = expected_counts[index]
        is_token = replacement != len(tokens)  # (L, W)
        total_without = total + count * (is_token.sum(axis=0) - 1)
        log_replacement = np.where(is_token, np.log(padded_counts[replacement] + count) - np.log(total_without), 0).sum(
            axis=0
        )
        token_loss = count * (np.log(count / total) - log_replacement)
        loss[index] = np.where(score >= log_probability[index], -np.inf, token_loss)
    is_character = _is_single_character(tokens)
    loss[is_character] = np.inf
    order = np.argsort(-loss, kind="stable")
    keep_mask = np.zeros(len(tokens), np.bool_)
    keep_mask[order[: max(num_remaining, int(is_character.sum()))]] = True
    return keep_mask & (loss > -np.inf)


def _finalize(tokens: list[str], probability: Floats, num_tokens: int) -> list[tuple[str, float]]:
    # Six decimals are enough, and independent of the last bits of a platform's logarithm.
    token_scores = [(token, round(float(score), 6)) for token, score in zip(tokens, np.log(probability), strict=True)]
    token_scores.sort(key=lambda item: (-item[1], item[0]))
    num_free = num_tokens - sum(len(token) == 1 for token, _ in token_scores)
    selected = []
    for token, score in token_scores:
        if len(token) > 1:
            num_free -= 1
        if len(token) == 1 or num_free >= 0:
            selected.append((token, score))
    return selected
