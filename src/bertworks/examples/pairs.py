"""Pairs of segments: an anchor in a split in, an Example of two segments out.

An anchor is the sentence at a piece of the row of paired documents. The example grows from it inside its document to
about the wanted length and is cut in two after a random sentence. Half of the time the second part is then replaced by
a run of sentences from another document (next sentence), or the two change places (sentence order). What stands in the
first segment does not depend on that draw, so that it cannot betray the answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bertworks.errors import InputError
from bertworks.examples.corpus import Place, Split
from bertworks.examples.example import Example, Span, assemble
from bertworks.vocabulary.tokenizer import Specials

FOLLOWS, RANDOM = 0, 1
IN_ORDER, SWAPPED = 0, 1


@dataclass(frozen=True, slots=True)
class PairSettings:
    """How pairs are made. A tenth of the examples is short, because at the end of pretraining inputs of full length
    are all a model has seen, while tasks come in all lengths."""

    short_rate: float = 0.1
    random_rate: float = 0.5


class NextSentencePairs:
    """Half of the pairs belong together; in the other half the second segment is from another document."""

    def __init__(self, split: Split, length: int, specials: Specials, settings: PairSettings = PairSettings()) -> None:
        if split.num_documents < 2:
            raise InputError(
                f"the split '{split.name}' has a single document, so there is no other one to take a random segment "
                f"from; give more documents (an empty line or a file ends one), or use an objective without pairs"
            )
        _check_pairs(split, length)
        self.split, self.length, self.specials, self.settings = split, length, specials, settings

    @property
    def num_anchors(self) -> int:
        return math.ceil(self.split.length_paired / (self.length - 3))

    def example(self, anchor: float, generator: np.random.Generator) -> Example:
        """Return the example of `anchor` (a number of anchors, with its epoch's shift added)."""
        room = self.length - 3
        is_random = generator.random() < self.settings.random_rate
        place, first, second, wanted = _grow(self.split, anchor * room, room, self.settings, generator)
        if is_random:
            partner = self.split.elsewhere(place, generator.random())
            second = _run_from(partner, max(1, wanted - len(first)), room)
        first, second = _trim(first, second, room, generator)
        return assemble([(first, 0), (second, 1)], self.specials, RANDOM if is_random else FOLLOWS)


class OrderedPairs:
    """Both segments are always neighbours; half of the time they have changed places (ALBERT)."""

    def __init__(self, split: Split, length: int, specials: Specials, settings: PairSettings = PairSettings()) -> None:
        _check_pairs(split, length)
        self.split, self.length, self.specials, self.settings = split, length, specials, settings

    @property
    def num_anchors(self) -> int:
        return math.ceil(self.split.length_paired / (self.length - 3))

    def example(self, anchor: float, generator: np.random.Generator) -> Example:
        """Return the example of `anchor` (a number of anchors, with its epoch's shift added)."""
        room = self.length - 3
        is_swapped = generator.random() < self.settings.random_rate
        _, first, second, _ = _grow(self.split, anchor * room, room, self.settings, generator)
        first, second = _trim(first, second, room, generator)
        if is_swapped:
            first, second = second, first
        return assemble([(first, 0), (second, 1)], self.specials, SWAPPED if is_swapped else IN_ORDER)


def _check_pairs(split: Split, length: int) -> None:
    if length < 5:
        raise InputError(f"a pair needs at least 5 places ([CLS] a [SEP] b [SEP]); the length is {length}")
    if not split.length_paired:
        raise InputError(
            f"no document of the split '{split.name}' has two sentences, so none can give a pair; is there an empty "
            f"line after every sentence? `bertworks doctor` tells; or use an objective without pairs"
        )


def _grow(
    split: Split, position: float, room: int, settings: PairSettings, generator: np.random.Generator
) -> tuple[Place, Span, Span, int]:
    """Return the anchor's place, the two neighbouring spans that grow from it, and the length that was wanted."""
    wanted = room if generator.random() >= settings.short_rate else int(generator.integers(2, room + 1))
    place = split.paired_at(position)
    shard, sentence = place.shard, place.sentence
    _, document_end = shard.document_of(sentence)
    if sentence == document_end - 1:
        sentence -= 1  # the last sentence has no successor: let it be the second segment
    start = _start_in(place, sentence, room)
    stop = shard.sentence_at(start + wanted - 1) + 1
    stop = min(max(stop, sentence + 2), document_end)
    cut = sentence + 1 + int(generator.integers(0, stop - sentence - 1))
    middle = shard.start_of(cut)
    first = Span(shard, start, min(middle, start + room))
    second = Span(shard, middle, min(shard.start_of(stop), middle + room))
    return place, first, second, wanted


def _start_in(place: Place, sentence: int, room: int) -> int:
    """Return where to begin: with the sentence, unless it alone is too long; then with the very piece of the anchor,
    so that over the epochs all of it is seen."""
    start = place.shard.start_of(sentence)
    too_long = sentence == place.sentence and place.shard.start_of(sentence + 1) - start > room
    return place.piece if too_long else start


def _run_from(place: Place, wanted: int, room: int) -> Span:
    """Return a run of whole sentences of about `wanted` pieces from `place` on, inside its document."""
    shard = place.shard
    _, document_end = shard.document_of(place.sentence)
    start = _start_in(place, place.sentence, room)
    stop = min(shard.sentence_at(start + wanted - 1) + 1, document_end)
    return Span(shard, start, min(shard.start_of(stop), start + room))


def _trim(first: Span, second: Span, room: int, generator: np.random.Generator) -> tuple[Span, Span]:
    """Shorten the longer span, then both in turn, until they fit; each piece goes from the front or the back by chance,
    which adds variety and favours neither end."""
    excess = len(first) + len(second) - room
    if excess <= 0:
        return first, second
    difference = len(first) - len(second)
    from_first = min(max(difference, 0), excess)
    from_second = min(max(-difference, 0), excess)
    rest = excess - from_first - from_second
    from_first += rest // 2
    from_second += rest - rest // 2
    return _shorten(first, from_first, generator), _shorten(second, from_second, generator)


def _shorten(span: Span, count: int, generator: np.random.Generator) -> Span:
    if not count:
        return span
    front = int(generator.binomial(count, 0.5))
    return Span(span.shard, span.start + front, span.stop - (count - front))
