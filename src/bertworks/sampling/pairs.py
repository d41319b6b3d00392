"""Segment pairs: an anchor in a split in, an Example of two segments out.

An anchor is a token of a document with at least two sentences. The example grows from it to both sides within the
document, up to the target length, and is split after a random sentence. With probability 0.5 segment B is then replaced
by text of another document (next sentence prediction), or the segments are swapped (sentence order prediction).

Lengths must not reveal the label. Short sentences are followed by short ones, so whole sentences would reveal it: at a
length of 32 tokens, a decision tree predicted two thirds of the labels from the two lengths alone. Therefore a random
segment B has exactly the length of the true one, starts at a sentence if that one does, and ends anywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bertworks.corpus.corpus import CorpusPosition, CorpusSplit
from bertworks.errors import InputError
from bertworks.sampling.example import Example, ShardSpan, assemble
from bertworks.vocabulary.tokenizer import SpecialTokenIds

FOLLOWS, RANDOM = 0, 1
IN_ORDER, SWAPPED = 0, 1

# How many documents are tried when the random one is too short.
_MAX_TRIES = 4


@dataclass(frozen=True, slots=True)
class PairSettings:
    """The ratio of short examples, which prepare a model for tasks with inputs of all lengths, and of label 1."""

    short_seq_prob: float = 0.1
    random_prob: float = 0.5


class _Pairs:
    """Base of both kinds of pairs: the split, the length and the anchors."""

    def __init__(
        self, split: CorpusSplit, max_length: int, specials: SpecialTokenIds, settings: PairSettings = PairSettings()
    ) -> None:
        if max_length < 5:
            raise InputError(f"max_length is {max_length}; a pair needs at least 5 positions ([CLS] a [SEP] b [SEP])")
        if not split.length_pairable:
            raise InputError(
                f"no document of the split '{split.name}' has two sentences, so there are no pairs; is there an empty "
                f"line after every sentence? Run `bertworks doctor`, or use an objective without pairs"
            )
        self.split, self.specials, self.settings = split, specials, settings
        self.max_tokens = max_length - 3

    @property
    def num_anchors(self) -> int:
        return math.ceil(self.split.length_pairable / self.max_tokens)

    def _locate(self, anchor: float) -> CorpusPosition:
        """Return the position of an anchor; anchors are spaced evenly over the documents with pairs."""
        return self.split.pairable_position_at(anchor / self.num_anchors * self.split.length_pairable)


class NextSentencePairs(_Pairs):
    """Pairs for next sentence prediction: segment B follows segment A, or is from another document (BERT)."""

    def __init__(
        self, split: CorpusSplit, max_length: int, specials: SpecialTokenIds, settings: PairSettings = PairSettings()
    ) -> None:
        if split.num_documents < 2:
            raise InputError(
                f"the split '{split.name}' has a single document, so there is no other one for a random segment; give"
                " more documents (separated by empty lines or files), or use an objective without pairs"
            )
        super().__init__(split, max_length, specials, settings)

    def example(self, anchor: float, generator: np.random.Generator) -> Example:
        """Return the example at `anchor` (fractional: the offset of the epoch is added)."""
        is_random = generator.random() < self.settings.random_prob
        position = self._locate(anchor)
        first, second = _grow(position, self.max_tokens, self.settings, generator)
        if is_random:
            begins_sentence = second.shard.first_token(second.shard.sentence_at(second.start)) == second.start
            second = self._sample_random_segment(position, len(second), begins_sentence, generator)
        return assemble([(first, 0), (second, 1)], self.specials, RANDOM if is_random else FOLLOWS)

    def _sample_random_segment(
        self, position: CorpusPosition, count: int, begins_sentence: bool, generator: np.random.Generator
    ) -> ShardSpan:
        """Return `count` tokens of another document than `position`'s; fewer if all documents tried are shorter."""
        segments: list[ShardSpan] = []
        for _ in range(_MAX_TRIES):
            other = self.split.sample_other_document(position, generator.random())
            segments.append(_take_segment(other, count, begins_sentence))
            if len(segments[-1]) == count:
                break
        return max(segments, key=len)


class SentenceOrderPairs(_Pairs):
    """Pairs for sentence order prediction: two consecutive segments, swapped with probability 0.5 (ALBERT).

    Segments are whole sentences. Where they do not fit, both are trimmed at both ends: if only the end of segment B
    were trimmed, the incomplete sentence would reveal the order.
    """

    def example(self, anchor: float, generator: np.random.Generator) -> Example:
        """Return the example at `anchor` (fractional: the offset of the epoch is added)."""
        is_swapped = generator.random() < self.settings.random_prob
        first, second = _grow_whole_sentences(self._locate(anchor), self.max_tokens, self.settings, generator)
        first, second = _trim(first, second, self.max_tokens, generator)
        if is_swapped:
            first, second = second, first
        return assemble([(first, 0), (second, 1)], self.specials, SWAPPED if is_swapped else IN_ORDER)


def _sample_length(max_tokens: int, settings: PairSettings, generator: np.random.Generator) -> int:
    """Sample the target length of an example, in tokens."""
    return max_tokens if generator.random() >= settings.short_seq_prob else int(generator.integers(2, max_tokens + 1))


def _grow(
    position: CorpusPosition, max_tokens: int, settings: PairSettings, generator: np.random.Generator
) -> tuple[ShardSpan, ShardSpan]:
    """Return two consecutive spans around an anchor, together of the target length if the document is long enough.

    The first starts at a sentence if it has more than one. The second always does, except inside a very long sentence.
    """
    target_length = _sample_length(max_tokens, settings, generator)
    if _is_long(position, max_tokens):
        return _sample_inside(position, target_length, generator)
    shard = position.shard
    sentence, (document_start, document_end) = _window_start(position, target_length, generator)
    # Near the end of the document, start earlier.
    start = min(shard.first_token(sentence), max(document_start, document_end - target_length))
    stop = min(start + target_length, document_end)
    sentence, last = shard.sentence_at(start), shard.sentence_at(stop - 1)
    if last > sentence:
        middle = shard.first_token(int(generator.integers(sentence + 1, last + 1)))
    else:  # a single sentence fills the example: split at its end instead
        middle = shard.first_token(sentence + 1)
        start = max(start, middle - int(generator.integers(1, target_length)))
        stop = min(start + target_length, document_end)
    return ShardSpan(shard, start, middle), ShardSpan(shard, middle, stop)


def _grow_whole_sentences(
    position: CorpusPosition, max_tokens: int, settings: PairSettings, generator: np.random.Generator
) -> tuple[ShardSpan, ShardSpan]:
    """Return two consecutive spans of whole sentences around an anchor, together of about the target length."""
    target_length = _sample_length(max_tokens, settings, generator)
    if _is_long(position, max_tokens):
        return _sample_inside(position, target_length, generator)
    shard = position.shard
    sentence, (document_start, document_end) = _window_start(position, target_length, generator)
    stop = min(shard.first_token(sentence) + target_length, document_end)
    if stop == document_end:  # start earlier
        sentence = min(sentence, shard.sentence_at(max(document_start, document_end - target_length)))
    start, stop_sentence = shard.first_token(sentence), max(shard.sentence_at(stop - 1) + 1, sentence + 2)
    middle = shard.first_token(int(generator.integers(sentence + 1, stop_sentence)))
    stop = min(shard.first_token(stop_sentence), middle + max_tokens)
    return ShardSpan(shard, max(start, middle - max_tokens), middle), ShardSpan(shard, middle, stop)


def _is_long(position: CorpusPosition, max_tokens: int) -> bool:
    """Whether the sentence of an anchor is longer than an example; such a sentence is split anywhere."""
    shard = position.shard
    return shard.first_token(position.sentence + 1) - shard.first_token(position.sentence) > max_tokens


def _sample_inside(
    position: CorpusPosition, target_length: int, generator: np.random.Generator
) -> tuple[ShardSpan, ShardSpan]:
    """Return two consecutive spans inside the sentence of an anchor."""
    shard = position.shard
    bounds = shard.first_token(position.sentence), shard.first_token(position.sentence + 1)
    start = _sample_start(position.token, target_length, bounds, generator)
    middle = start + int(generator.integers(1, target_length))
    return ShardSpan(shard, start, middle), ShardSpan(shard, middle, start + target_length)


def _sample_start(token: int, target_length: int, bounds: tuple[int, int], generator: np.random.Generator) -> int:
    """Return the start of a span of `target_length` tokens with `token` at a random position, moved inside `bounds`.

    If spans started at their anchor, the beginnings of documents would almost never be sampled.
    """
    first, end = bounds
    return max(first, min(token - int(generator.integers(0, target_length)), end - target_length))


def _window_start(
    position: CorpusPosition, target_length: int, generator: np.random.Generator
) -> tuple[int, tuple[int, int]]:
    """Return the first sentence of a span of about `target_length` tokens around `position`, and the document's bounds.

    The sentence is never the last one of its document. The bounds are those of the document's tokens.
    """
    shard = position.shard
    first_sentence, end_sentence = shard.document_span(position.sentence)
    bounds = shard.first_token(first_sentence), shard.first_token(end_sentence)
    start = _sample_start(position.token, target_length, bounds, generator)
    return min(shard.sentence_from(start), position.sentence, end_sentence - 2), bounds


def _take_segment(position: CorpusPosition, count: int, begins_sentence: bool) -> ShardSpan:
    """Return `count` tokens of the document of `position`: from the next sentence on, or from `position` itself."""
    shard = position.shard
    first_sentence, end_sentence = shard.document_span(position.sentence)
    document_start, document_end = shard.first_token(first_sentence), shard.first_token(end_sentence)
    max_start = max(document_start, document_end - count)
    start = min(position.token, max_start)
    if begins_sentence:  # a true segment B is never the beginning of a document
        start = shard.first_token(min(position.sentence + 1, shard.sentence_at(max_start)))
    return ShardSpan(shard, start, min(start + count, document_end))


def _trim(
    first: ShardSpan, second: ShardSpan, max_tokens: int, generator: np.random.Generator
) -> tuple[ShardSpan, ShardSpan]:
    """Shorten the longer span, then both equally, until they fit. Each token is removed from the front or the back.

    Front or back is random, for variety and without a preference. Which span loses the odd token is random too:
    otherwise the longer of two swapped segments would always be the one that came first.
    """
    excess = len(first) + len(second) - max_tokens
    if excess <= 0:
        return first, second
    difference = len(first) - len(second)
    from_first = min(max(difference, 0), excess)
    from_second = min(max(-difference, 0), excess)
    remaining = excess - from_first - from_second
    odd = int(generator.integers(0, 2)) if remaining % 2 else 0
    from_first += remaining // 2 + odd
    from_second += remaining - remaining // 2 - odd
    return _shorten(first, from_first, generator), _shorten(second, from_second, generator)


def _shorten(span: ShardSpan, count: int, generator: np.random.Generator) -> ShardSpan:
    if not count:
        return span
    from_front = int(generator.binomial(count, 0.5))
    return ShardSpan(span.shard, span.start + from_front, span.stop - (count - from_front))
