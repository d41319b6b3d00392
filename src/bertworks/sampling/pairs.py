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

from bertworks.corpus.corpus import Place, Split
from bertworks.errors import InputError
from bertworks.sampling.example import Example, Span, assemble
from bertworks.vocabulary.tokenizer import Specials

FOLLOWS, RANDOM = 0, 1
IN_ORDER, SWAPPED = 0, 1

# How often another partner is looked for when one is too short.
_TRIES = 4


@dataclass(frozen=True, slots=True)
class PairSettings:
    """How pairs are made. A tenth of the examples is short, because at the end of pretraining inputs of full length
    are all a model has seen, while tasks come in all lengths."""

    short_rate: float = 0.1
    random_rate: float = 0.5


class _Pairs:
    """What both kinds of pairs share: a split, a length, and where the anchors lie."""

    def __init__(self, split: Split, length: int, specials: Specials, settings: PairSettings = PairSettings()) -> None:
        if length < 5:
            raise InputError(f"a pair needs at least 5 places ([CLS] a [SEP] b [SEP]); the length is {length}")
        if not split.length_paired:
            raise InputError(
                f"no document of the split '{split.name}' has two sentences, so none can give a pair; is there an "
                f"empty line after every sentence? `bertworks doctor` tells; or use an objective without pairs"
            )
        self.split, self.specials, self.settings = split, specials, settings
        self.room = length - 3

    @property
    def num_anchors(self) -> int:
        return math.ceil(self.split.length_paired / self.room)

    def _place(self, anchor: float) -> Place:
        """Return where an anchor lies: they are spread evenly over the row of paired documents."""
        return self.split.paired_at(anchor / self.num_anchors * self.split.length_paired)


class NextSentencePairs(_Pairs):
    """Half of the pairs belong together; in the other half the second segment is from another document."""

    def __init__(self, split: Split, length: int, specials: Specials, settings: PairSettings = PairSettings()) -> None:
        if split.num_documents < 2:
            raise InputError(
                f"the split '{split.name}' has a single document, so there is no other one to take a random segment "
                f"from; give more documents (an empty line or a file ends one), or use an objective without pairs"
            )
        super().__init__(split, length, specials, settings)

    def example(self, anchor: float, generator: np.random.Generator) -> Example:
        """Return the example of `anchor` (a number of anchors, with its epoch's shift added)."""
        is_random = generator.random() < self.settings.random_rate
        place = self._place(anchor)
        first, second = _grow(place, self.room, self.settings, generator)
        if is_random:
            begins_sentence = second.shard.start_of(second.shard.sentence_at(second.start)) == second.start
            second = self._elsewhere(place, len(second), begins_sentence, generator)
        return assemble([(first, 0), (second, 1)], self.specials, RANDOM if is_random else FOLLOWS)

    def _elsewhere(self, place: Place, count: int, begins_sentence: bool, generator: np.random.Generator) -> Span:
        """Return `count` pieces of another document than that of `place`: fewer only if a few that were met by chance
        are all shorter."""
        found = []
        for _ in range(_TRIES):
            found.append(_run(self.split.elsewhere(place, generator.random()), count, begins_sentence))
            if len(found[-1]) == count:
                break
        return max(found, key=len)


class OrderedPairs(_Pairs):
    """Both segments are always neighbours; half of the time they have changed places (ALBERT).

    They are whole sentences, of which both lose pieces at both ends where they do not fit: were only the end of the
    second cut, the place of the cut would tell the order.
    """

    def example(self, anchor: float, generator: np.random.Generator) -> Example:
        """Return the example of `anchor` (a number of anchors, with its epoch's shift added)."""
        is_swapped = generator.random() < self.settings.random_rate
        first, second = _grow_whole(self._place(anchor), self.room, self.settings, generator)
        first, second = _trim(first, second, self.room, generator)
        if is_swapped:
            first, second = second, first
        return assemble([(first, 0), (second, 1)], self.specials, SWAPPED if is_swapped else IN_ORDER)


def _wanted(room: int, settings: PairSettings, generator: np.random.Generator) -> int:
    """Draw how many pieces an example is to have."""
    return room if generator.random() >= settings.short_rate else int(generator.integers(2, room + 1))


def _grow(place: Place, room: int, settings: PairSettings, generator: np.random.Generator) -> tuple[Span, Span]:
    """Return two neighbouring spans around an anchor, together of the wanted length where the document has as much.

    The first begins with a sentence if it holds more than one, the second always, but inside a very long sentence.
    """
    wanted = _wanted(room, settings, generator)
    if _is_long(place, room):
        return _inside(place, wanted, generator)
    shard = place.shard
    sentence, (begin, end) = _window_start(place, wanted, generator)
    start = min(shard.start_of(sentence), max(begin, end - wanted))  # too little is left: begin earlier
    stop = min(start + wanted, end)
    sentence, last = shard.sentence_at(start), shard.sentence_at(stop - 1)
    if last > sentence:
        middle = shard.start_of(int(generator.integers(sentence + 1, last + 1)))
    else:  # the sentence fills it all: what can be told apart lies around its end
        middle = shard.start_of(sentence + 1)
        start = max(start, middle - int(generator.integers(1, wanted)))
        stop = min(start + wanted, end)
    return Span(shard, start, middle), Span(shard, middle, stop)


def _grow_whole(place: Place, room: int, settings: PairSettings, generator: np.random.Generator) -> tuple[Span, Span]:
    """Return two neighbouring spans of whole sentences around an anchor, together of about the wanted length."""
    wanted = _wanted(room, settings, generator)
    if _is_long(place, room):
        return _inside(place, wanted, generator)
    shard = place.shard
    sentence, (begin, end) = _window_start(place, wanted, generator)
    stop = min(shard.start_of(sentence) + wanted, end)
    if stop == end:  # too little is left: begin earlier
        sentence = min(sentence, shard.sentence_at(max(begin, end - wanted)))
    start, behind = shard.start_of(sentence), max(shard.sentence_at(stop - 1) + 1, sentence + 2)
    middle = shard.start_of(int(generator.integers(sentence + 1, behind)))
    stop = min(shard.start_of(behind), middle + room)
    return Span(shard, max(start, middle - room), middle), Span(shard, middle, stop)


def _is_long(place: Place, room: int) -> bool:
    """Whether the sentence of an anchor is longer than an example; it is cut anywhere then, so that all is seen."""
    return place.shard.start_of(place.sentence + 1) - place.shard.start_of(place.sentence) > room


def _inside(place: Place, wanted: int, generator: np.random.Generator) -> tuple[Span, Span]:
    """Return two neighbouring spans inside the sentence of an anchor."""
    shard = place.shard
    within = shard.start_of(place.sentence), shard.start_of(place.sentence + 1)
    start = _first_piece(place.piece, wanted, within, generator)
    middle = start + int(generator.integers(1, wanted))
    return Span(shard, start, middle), Span(shard, middle, start + wanted)


def _first_piece(piece: int, wanted: int, within: tuple[int, int], generator: np.random.Generator) -> int:
    """Return where a run of `wanted` pieces begins that holds `piece` at a random place, moved inside `within`.

    Runs that only began with their anchor would nearly never show how a document begins.
    """
    begin, end = within
    return max(begin, min(piece - int(generator.integers(0, wanted)), end - wanted))


def _window_start(place: Place, wanted: int, generator: np.random.Generator) -> tuple[int, tuple[int, int]]:
    """Return the sentence that begins a run of about `wanted` pieces around `place`, never the last of its document,
    and the document's first piece and last piece + 1."""
    shard = place.shard
    first, last = shard.document_of(place.sentence)
    begin, end = shard.start_of(first), shard.start_of(last)
    piece = _first_piece(place.piece, wanted, (begin, end), generator)
    return min(shard.sentence_from(piece), place.sentence, last - 2), (begin, end)


def _run(place: Place, count: int, begins_sentence: bool) -> Span:
    """Return `count` pieces of the document of `place`: from the next sentence on, or from that very piece."""
    shard = place.shard
    first, last = shard.document_of(place.sentence)
    begin, end = shard.start_of(first), shard.start_of(last)
    latest = max(begin, end - count)
    start = min(place.piece, latest)
    if begins_sentence:  # a second segment is never how a document begins, if there is a choice
        start = shard.start_of(min(place.sentence + 1, shard.sentence_at(latest)))
    return Span(shard, start, min(start + count, end))


def _trim(first: Span, second: Span, room: int, generator: np.random.Generator) -> tuple[Span, Span]:
    """Shorten the longer span, then both in turn, until they fit; each piece goes from the front or the back by chance,
    which adds variety and favours neither end. Chance also says whose the odd piece is: else the longer of two swapped
    segments would always be the one that came first."""
    excess = len(first) + len(second) - room
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


def _shorten(span: Span, count: int, generator: np.random.Generator) -> Span:
    if not count:
        return span
    front = int(generator.binomial(count, 0.5))
    return Span(span.shard, span.start + front, span.stop - (count - front))
