"""Streams: the documents of a split, one behind the other without end; any stretch of that row in, an Example out.

Each document stands between the special pieces of its own, as a single text does: [CLS] text [SEP]. A reader that never
stops meets all documents and then the first again. Where a source weighs more or less than 1, its documents come that
much oftener, or in one round some of them and in the next the others.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from bertworks.corpus.corpus import ShardOfSplit, Split
from bertworks.errors import InputError
from bertworks.sampling.example import Example, Span
from bertworks.vocabulary.tokenizer import Specials

# Special pieces of a document.
_NUM_SPECIAL = 2

# The ids of some pieces, and whether a word begins with each.
Run = tuple[npt.NDArray[np.integer], npt.NDArray[np.bool_]]


class Streams:
    """A row without end. Stretches of it are `length` pieces at most, and `usual` on average.

    Their ends are moved by up to `play` pieces, so that a text is not cut at the same places again and again.
    """

    def __init__(self, split: Split, length: int, specials: Specials) -> None:
        if length < 2:
            raise InputError(
                f"a stretch needs at least 2 places, one to read and one behind it; the length is {length}"
            )
        self.split, self.length, self.specials = split, length, specials
        self.play = length // 16
        self.usual = length - 2 * self.play
        self._own = [shard.num_pieces + _NUM_SPECIAL * _num_documents(shard) for shard in split.shards]
        stretched = [max(1, round(own * shard.weight)) for own, shard in zip(self._own, split.shards, strict=True)]
        self._ends = list(itertools.accumulate(stretched))

    @property
    def num_pieces(self) -> int:
        """How many pieces one round has, special ones too."""
        return self._ends[-1]

    @property
    def num_anchors(self) -> int:
        return math.ceil(self.num_pieces / self.usual)

    def example(self, anchor: float, generator: np.random.Generator) -> Example:
        """Return the stretch at `anchor`; it draws nothing."""
        start = int(anchor * self.usual)
        return self.cut(start, start + self.usual)

    def cut(self, start: int, stop: int) -> Example:
        """Return the pieces `start` to `stop` of the endless row, and the one that stands behind them."""
        parts = list(self._runs(start, stop + 1))
        ids = np.concatenate([ids for ids, _ in parts], dtype=np.int32)
        word_starts = np.concatenate([words for _, words in parts])[:-1]
        is_special = np.isin(ids[:-1], (self.specials.first, self.specials.separator))
        word_starts[0] = True  # of a word that was cut, what is left begins here
        segments = np.zeros(stop - start, dtype=np.int8)
        return Example(ids[:-1], segments, word_starts, is_special, behind=int(ids[-1]))

    def _runs(self, start: int, stop: int) -> Iterator[Run]:
        """Yield the runs that make up a stretch."""
        while start < stop:
            turn, place = divmod(start, self.num_pieces)
            number = bisect_right(self._ends, place)
            before = self._ends[number - 1] if number else 0
            own = self._own[number]
            # A source that is not read just once a round goes on in the next where it stopped.
            offset = (place - before + turn * (self._ends[number] - before)) % own
            count = min(stop - start, self._ends[number] - place, own - offset)
            yield from self._of_shard(number, offset, offset + count)
            start += count

    def _of_shard(self, number: int, start: int, stop: int) -> Iterator[Run]:
        """Yield the runs from `start` to `stop` of one shard's documents, special pieces counted."""
        shard, arrays = self.split.shards[number], self.split.mapped(number)
        first = arrays.document_at(shard.first_piece)

        def begin_of(document: int) -> int:
            piece = arrays.start_of(arrays.first_sentence(first + document))
            return piece - shard.first_piece + _NUM_SPECIAL * document

        num_documents = _num_documents(shard)
        document = bisect_right(range(num_documents), start, key=begin_of) - 1
        while start < stop:
            begin, end = begin_of(document), begin_of(document + 1)
            piece = shard.first_piece + begin - _NUM_SPECIAL * document
            span = Span(arrays, piece, piece + end - begin - _NUM_SPECIAL)
            yield from self._framed(span, start - begin, min(stop, end) - begin)
            start, document = end, document + 1

    def _framed(self, span: Span, start: int, stop: int) -> Iterator[Run]:
        """Yield the runs from `start` to `stop` of a document with its special pieces."""
        frame, specials = self.specials.frame, self.specials
        before = [specials.first] * frame.num_before
        after = [specials.separator, *[specials.first] * frame.num_after]
        yield _special(before[start:stop])
        low, high = (min(max(place - len(before), 0), len(span)) for place in (start, stop))
        if low < high:
            low, high = span.start + low, span.start + high
            yield span.shard.ids[low:high], span.shard.words_from(low, high)
        low, high = (max(place - len(before) - len(span), 0) for place in (start, stop))
        yield _special(after[low:high])


def _special(ids: list[int]) -> Run:
    return np.array(ids, dtype=np.int32), np.ones(len(ids), dtype=np.bool_)


def _num_documents(shard: ShardOfSplit) -> int:
    return shard.paired.documents + shard.lone.documents
