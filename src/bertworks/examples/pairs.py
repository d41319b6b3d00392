"""Pairs of segments: an anchor in a split in, an Example of two segments out.

An anchor is a piece of the row of paired documents. The example grows from it to both sides inside its document, to
about the wanted length, and is cut in two after a random sentence. Half of the time the second part is then replaced
by a run of sentences from another document (next sentence), or the two change places (sentence order). What stands in
the first segment does not depend on that draw, and the random run is found as the true one is: as far behind an anchor
as the first segment is long. Were it simply the sentence at a random piece, it would be longer than sentences that
follow others are, and lengths alone would betray the answer.
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
        first, second, wanted = _grow(place, self.room, self.settings, generator)
        if is_random:
            partner = self.split.elsewhere(place, generator.random())
            second = _run_behind(partner, len(first), wanted, self.room, generator)
        first, second = _trim(first, second, self.room, generator)
        return assemble([(first, 0), (second, 1)], self.specials, RANDOM if is_random else FOLLOWS)


class OrderedPairs(_Pairs):
    """Both segments are always neighbours; half of the time they have changed places (ALBERT)."""

    def example(self, anchor: float, generator: np.random.Generator) -> Example:
        """Return the example of `anchor` (a number of anchors, with its epoch's shift added)."""
        is_swapped = generator.random() < self.settings.random_rate
        first, second, _ = _grow(self._place(anchor), self.room, self.settings, generator)
        first, second = _trim(first, second, self.room, generator)
        if is_swapped:
            first, second = second, first
        return assemble([(first, 0), (second, 1)], self.specials, SWAPPED if is_swapped else IN_ORDER)


def _grow(place: Place, room: int, settings: PairSettings, generator: np.random.Generator) -> tuple[Span, Span, int]:
    """Return the two neighbouring spans that grow from an anchor, and the length that was wanted."""
    wanted = room if generator.random() >= settings.short_rate else int(generator.integers(2, room + 1))
    shard = place.shard
    begin, end = shard.start_of(place.sentence), shard.start_of(place.sentence + 1)
    if end - begin > room:  # a sentence longer than an example is cut like a run of short ones, so that all is seen
        start = _first_piece(place.piece, wanted, (begin, end), generator)
        middle = start + int(generator.integers(1, wanted))
        return Span(shard, start, middle), Span(shard, middle, start + wanted), wanted
    sentence, stop = _window(place, wanted, generator)
    start = shard.start_of(sentence)
    cut = sentence + 1 + int(generator.integers(0, stop - sentence - 1))
    middle = shard.start_of(cut)
    first = Span(shard, max(start, middle - room), middle)
    second = Span(shard, middle, min(shard.start_of(stop), middle + room))
    return first, second, wanted


def _first_piece(piece: int, wanted: int, within: tuple[int, int], generator: np.random.Generator) -> int:
    """Return where a run of `wanted` pieces begins that holds `piece` at a random place, moved inside `within`.

    Runs that only began with their anchor would nearly never show how a document begins.
    """
    begin, end = within
    return max(begin, min(piece - int(generator.integers(0, wanted)), end - wanted))


def _window(place: Place, wanted: int, generator: np.random.Generator) -> tuple[int, int]:
    """Return the first sentence of a run of about `wanted` pieces around `place` inside its document, and the first
    behind the run. There are at least two."""
    shard = place.shard
    first, last = shard.document_of(place.sentence)
    begin, end = shard.start_of(first), shard.start_of(last)
    piece = _first_piece(place.piece, wanted, (begin, end), generator)
    sentence = min(shard.sentence_from(piece), place.sentence, last - 2)
    if end - shard.start_of(sentence) <= wanted:  # too little is left: begin earlier
        return min(shard.sentence_at(max(begin, end - wanted)), last - 2), last
    stop = shard.sentence_at(shard.start_of(sentence) + wanted - 1) + 1
    return sentence, max(stop, sentence + 2)


def _run_behind(place: Place, skipped: int, wanted: int, room: int, generator: np.random.Generator) -> Span:
    """Return what would be the second segment around `place` if the first were `skipped` pieces long."""
    shard = place.shard
    document_start, document_end = shard.document_of(place.sentence)
    if shard.start_of(place.sentence + 1) - shard.start_of(place.sentence) > room:
        start = place.piece  # inside a sentence longer than an example, as above
    elif document_end - document_start == 1:
        start = shard.start_of(document_start)
    else:
        first, _ = _window(place, wanted, generator)
        behind = shard.sentence_at(shard.start_of(first) + skipped - 1) + 1
        if behind >= document_end:  # the document is shorter than that: cut it after any sentence
            behind = int(generator.integers(first + 1, document_end))
        start = shard.start_of(behind)
    stop = min(shard.sentence_at(start + max(1, wanted - skipped) - 1) + 1, document_end)
    return Span(shard, start, min(shard.start_of(stop), start + room))


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
