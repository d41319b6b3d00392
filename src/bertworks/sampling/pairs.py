"""Pairs of segments: an anchor in a split in, an Example of two segments out.

An anchor is a piece of the row of paired documents. The example grows from it to both sides inside its document, to
the wanted length, and is cut in two after a random sentence. Half of the time the second part is then replaced by text
of another document (next sentence), or the two change places (sentence order).

Lengths must not betray the answer. Short sentences stand beside short ones, so whole sentences would: in rows of 32
pieces a decision tree guessed two thirds of the labels from the two lengths alone. Therefore a second segment has
exactly the length that the true one has, begins with a sentence if that one does, and ends wherever its length ends.
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

# How often another partner is looked for when one is too short.
_MAX_TRIES = 4


@dataclass(frozen=True, slots=True)
class PairSettings:
    """How pairs are made. A tenth of the examples is short, because at the end of pretraining inputs of full length
    are all a model has seen, while tasks come in all lengths."""

    short_seq_prob: float = 0.1
    random_prob: float = 0.5


class _Pairs:
    """What both kinds of pairs share: a split, a length, and where the anchors lie."""

    def __init__(
        self, split: CorpusSplit, max_length: int, specials: SpecialTokenIds, settings: PairSettings = PairSettings()
    ) -> None:
        if max_length < 5:
            raise InputError(f"a pair needs at least 5 places ([CLS] a [SEP] b [SEP]); the length is {max_length}")
        if not split.length_pairable:
            raise InputError(
                f"no document of the split '{split.name}' has two sentences, so none can give a pair; is there an "
                f"empty line after every sentence? `bertworks doctor` tells; or use an objective without pairs"
            )
        self.split, self.specials, self.settings = split, specials, settings
        self.max_tokens = max_length - 3

    @property
    def num_anchors(self) -> int:
        return math.ceil(self.split.length_pairable / self.max_tokens)

    def _locate(self, anchor: float) -> CorpusPosition:
        """Return where an anchor lies: they are spread evenly over the row of paired documents."""
        return self.split.pairable_position_at(anchor / self.num_anchors * self.split.length_pairable)


class NextSentencePairs(_Pairs):
    """Half of the pairs belong together; in the other half the second segment is from another document."""

    def __init__(
        self, split: CorpusSplit, max_length: int, specials: SpecialTokenIds, settings: PairSettings = PairSettings()
    ) -> None:
        if split.num_documents < 2:
            raise InputError(
                f"the split '{split.name}' has a single document, so there is no other one to take a random segment "
                f"from; give more documents (an empty line or a file ends one), or use an objective without pairs"
            )
        super().__init__(split, max_length, specials, settings)

    def example(self, anchor: float, generator: np.random.Generator) -> Example:
        """Return the example of `anchor` (a number of anchors, with its epoch's shift added)."""
        is_random = generator.random() < self.settings.random_prob
        place = self._locate(anchor)
        first, second = _grow(place, self.max_tokens, self.settings, generator)
        if is_random:
            begins_sentence = second.shard.first_token(second.shard.sentence_at(second.start)) == second.start
            second = self._sample_random_segment(place, len(second), begins_sentence, generator)
        return assemble([(first, 0), (second, 1)], self.specials, RANDOM if is_random else FOLLOWS)

    def _sample_random_segment(
        self, position: CorpusPosition, count: int, begins_sentence: bool, generator: np.random.Generator
    ) -> ShardSpan:
        """Return `count` pieces of another document than that of `place`: fewer only if a few that were met by chance
        are all shorter."""
        found = []
        for _ in range(_MAX_TRIES):
            found.append(
                _take_segment(self.split.sample_other_document(position, generator.random()), count, begins_sentence)
            )
            if len(found[-1]) == count:
                break
        return max(found, key=len)


class SentenceOrderPairs(_Pairs):
    """Both segments are always neighbours; half of the time they have changed places (ALBERT).

    They are whole sentences, of which both lose pieces at both ends where they do not fit: were only the end of the
    second cut, the place of the cut would tell the order.
    """

    def example(self, anchor: float, generator: np.random.Generator) -> Example:
        """Return the example of `anchor` (a number of anchors, with its epoch's shift added)."""
        is_swapped = generator.random() < self.settings.random_prob
        first, second = _grow_whole(self._locate(anchor), self.max_tokens, self.settings, generator)
        first, second = _trim(first, second, self.max_tokens, generator)
        if is_swapped:
            first, second = second, first
        return assemble([(first, 0), (second, 1)], self.specials, SWAPPED if is_swapped else IN_ORDER)


def _sample_length(max_tokens: int, settings: PairSettings, generator: np.random.Generator) -> int:
    """Draw how many pieces an example is to have."""
    return max_tokens if generator.random() >= settings.short_seq_prob else int(generator.integers(2, max_tokens + 1))


def _grow(
    position: CorpusPosition, max_tokens: int, settings: PairSettings, generator: np.random.Generator
) -> tuple[ShardSpan, ShardSpan]:
    """Return two neighbouring spans around an anchor, together of the wanted length where the document has as much.

    The first begins with a sentence if it holds more than one, the second always, but inside a very long sentence.
    """
    wanted = _sample_length(max_tokens, settings, generator)
    if _is_long(position, max_tokens):
        return _sample_inside(position, wanted, generator)
    shard = position.shard
    sentence, (begin, end) = _window_start(position, wanted, generator)
    start = min(shard.first_token(sentence), max(begin, end - wanted))  # too little is left: begin earlier
    stop = min(start + wanted, end)
    sentence, last = shard.sentence_at(start), shard.sentence_at(stop - 1)
    if last > sentence:
        middle = shard.first_token(int(generator.integers(sentence + 1, last + 1)))
    else:  # the sentence fills it all: what can be told apart lies around its end
        middle = shard.first_token(sentence + 1)
        start = max(start, middle - int(generator.integers(1, wanted)))
        stop = min(start + wanted, end)
    return ShardSpan(shard, start, middle), ShardSpan(shard, middle, stop)


def _grow_whole(
    position: CorpusPosition, max_tokens: int, settings: PairSettings, generator: np.random.Generator
) -> tuple[ShardSpan, ShardSpan]:
    """Return two neighbouring spans of whole sentences around an anchor, together of about the wanted length."""
    wanted = _sample_length(max_tokens, settings, generator)
    if _is_long(position, max_tokens):
        return _sample_inside(position, wanted, generator)
    shard = position.shard
    sentence, (begin, end) = _window_start(position, wanted, generator)
    stop = min(shard.first_token(sentence) + wanted, end)
    if stop == end:  # too little is left: begin earlier
        sentence = min(sentence, shard.sentence_at(max(begin, end - wanted)))
    start, behind = shard.first_token(sentence), max(shard.sentence_at(stop - 1) + 1, sentence + 2)
    middle = shard.first_token(int(generator.integers(sentence + 1, behind)))
    stop = min(shard.first_token(behind), middle + max_tokens)
    return ShardSpan(shard, max(start, middle - max_tokens), middle), ShardSpan(shard, middle, stop)


def _is_long(position: CorpusPosition, max_tokens: int) -> bool:
    """Whether the sentence of an anchor is longer than an example; it is cut anywhere then, so that all is seen."""
    return (
        position.shard.first_token(position.sentence + 1) - position.shard.first_token(position.sentence) > max_tokens
    )


def _sample_inside(
    position: CorpusPosition, target_length: int, generator: np.random.Generator
) -> tuple[ShardSpan, ShardSpan]:
    """Return two neighbouring spans inside the sentence of an anchor."""
    shard = position.shard
    within = shard.first_token(position.sentence), shard.first_token(position.sentence + 1)
    start = _sample_start(position.token, target_length, within, generator)
    middle = start + int(generator.integers(1, target_length))
    return ShardSpan(shard, start, middle), ShardSpan(shard, middle, start + target_length)


def _sample_start(token: int, target_length: int, bounds: tuple[int, int], generator: np.random.Generator) -> int:
    """Return where a run of `wanted` pieces begins that holds `piece` at a random place, moved inside `within`.

    Runs that only began with their anchor would nearly never show how a document begins.
    """
    begin, end = bounds
    return max(begin, min(token - int(generator.integers(0, target_length)), end - target_length))


def _window_start(
    position: CorpusPosition, target_length: int, generator: np.random.Generator
) -> tuple[int, tuple[int, int]]:
    """Return the sentence that begins a run of about `wanted` pieces around `place`, never the last of its document,
    and the document's first piece and last piece + 1."""
    shard = position.shard
    first, last = shard.document_span(position.sentence)
    begin, end = shard.first_token(first), shard.first_token(last)
    piece = _sample_start(position.token, target_length, (begin, end), generator)
    return min(shard.sentence_from(piece), position.sentence, last - 2), (begin, end)


def _take_segment(position: CorpusPosition, count: int, begins_sentence: bool) -> ShardSpan:
    """Return `count` pieces of the document of `place`: from the next sentence on, or from that very piece."""
    shard = position.shard
    first, last = shard.document_span(position.sentence)
    begin, end = shard.first_token(first), shard.first_token(last)
    latest = max(begin, end - count)
    start = min(position.token, latest)
    if begins_sentence:  # a second segment is never how a document begins, if there is a choice
        start = shard.first_token(min(position.sentence + 1, shard.sentence_at(latest)))
    return ShardSpan(shard, start, min(start + count, end))


def _trim(
    first: ShardSpan, second: ShardSpan, max_tokens: int, generator: np.random.Generator
) -> tuple[ShardSpan, ShardSpan]:
    """Shorten the longer span, then both in turn, until they fit; each piece goes from the front or the back by chance,
    which adds variety and favours neither end. Chance also says whose the odd piece is: else the longer of two swapped
    segments would always be the one that came first."""
    excess = len(first) + len(second) - max_tokens
    if excess <= 0:
        return first, second
    difference = len(first) - len(second)
    from_first = min(max(difference, 0), excess)
    from_second = min(max(-difference, 0), excess)
    rest = excess - from_first - from_second
    odd = int(generator.integers(0, 2)) if rest % 2 else 0
    from_first += rest // 2 + odd
    from_second += rest - rest // 2 - odd
    return _shorten(first, from_first, generator), _shorten(second, from_second, generator)


def _shorten(span: ShardSpan, count: int, generator: np.random.Generator) -> ShardSpan:
    if not count:
        return span
    front = int(generator.binomial(count, 0.5))
    return ShardSpan(span.shard, span.start + front, span.stop - (count - front))
