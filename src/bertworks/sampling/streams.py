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

from bertworks.corpus.corpus import CorpusSplit, SplitShard
from bertworks.errors import InputError
from bertworks.sampling.example import Example, ShardSpan
from bertworks.vocabulary.tokenizer import SpecialTokenIds

# Special pieces of a document.
_NUM_SPECIAL = 2

# The ids of some pieces, and whether a word begins with each.
TokenRun = tuple[npt.NDArray[np.integer], npt.NDArray[np.bool_]]


class Streams:
    """A row without end. Stretches of it are `length` pieces at most, and `usual` on average.

    Their ends are moved by up to `play` pieces, so that a text is not cut at the same places again and again.
    """

    def __init__(self, split: CorpusSplit, max_length: int, specials: SpecialTokenIds) -> None:
        if max_length < 2:
            raise InputError(
                f"a stretch needs at least 2 places, one to read and one behind it; the length is {max_length}"
            )
        self.split, self.max_length, self.specials = split, max_length, specials
        self.jitter = max_length // 16
        self.mean_length = max_length - 2 * self.jitter
        self._shard_lengths = [shard.num_tokens + _NUM_SPECIAL * _num_documents(shard) for shard in split.shards]
        stretched = [
            max(1, round(own * shard.weight)) for own, shard in zip(self._shard_lengths, split.shards, strict=True)
        ]
        self._ends = list(itertools.accumulate(stretched))

    @property
    def num_tokens(self) -> int:
        """How many pieces one round has, special ones too."""
        return self._ends[-1]

    @property
    def num_anchors(self) -> int:
        return math.ceil(self.num_tokens / self.mean_length)

    def example(self, anchor: float, generator: np.random.Generator) -> Example:
        """Return the stretch at `anchor`; it draws nothing."""
        start = int(anchor * self.mean_length)
        return self.example_between(start, start + self.mean_length)

    def example_between(self, start: int, stop: int) -> Example:
        """Return the pieces `start` to `stop` of the endless row, and the one that stands behind them."""
        parts = list(self._runs(start, stop + 1))
        ids = np.concatenate([ids for ids, _ in parts], dtype=np.int32)
        word_starts = np.concatenate([words for _, words in parts])[:-1]
        is_special = np.isin(ids[:-1], (self.specials.cls, self.specials.sep))
        word_starts[0] = True  # of a word that was cut, what is left begins here
        segments = np.zeros(stop - start, dtype=np.int8)
        return Example(ids[:-1], segments, word_starts, is_special, next_token=int(ids[-1]))

    def _runs(self, start: int, stop: int) -> Iterator[TokenRun]:
        """Yield the runs that make up a stretch."""
        while start < stop:
            turn, place = divmod(start, self.num_tokens)
            number = bisect_right(self._ends, place)
            before = self._ends[number - 1] if number else 0
            own = self._shard_lengths[number]
            # A source that is not read just once a round goes on in the next where it stopped.
            offset = (place - before + turn * (self._ends[number] - before)) % own
            count = min(stop - start, self._ends[number] - place, own - offset)
            yield from self._shard_runs(number, offset, offset + count)
            start += count

    def _shard_runs(self, number: int, start: int, stop: int) -> Iterator[TokenRun]:
        """Yield the runs from `start` to `stop` of one shard's documents, special pieces counted."""
        shard, arrays = self.split.shards[number], self.split.shard_arrays(number)
        first = arrays.document_at(shard.first_token)

        def begin_of(document: int) -> int:
            piece = arrays.first_token(arrays.first_sentence(first + document))
            return piece - shard.first_token + _NUM_SPECIAL * document

        num_documents = _num_documents(shard)
        document = bisect_right(range(num_documents), start, key=begin_of) - 1
        while start < stop:
            begin, end = begin_of(document), begin_of(document + 1)
            piece = shard.first_token + begin - _NUM_SPECIAL * document
            span = ShardSpan(arrays, piece, piece + end - begin - _NUM_SPECIAL)
            yield from self._document_runs(span, start - begin, min(stop, end) - begin)
            start, document = end, document + 1

    def _document_runs(self, span: ShardSpan, start: int, stop: int) -> Iterator[TokenRun]:
        """Yield the runs from `start` to `stop` of a document with its special pieces."""
        frame, specials = self.specials.template, self.specials
        before = [specials.cls] * frame.num_before
        after = [specials.sep, *[specials.cls] * frame.num_after]
        yield _special_run(before[start:stop])
        low, high = (min(max(place - len(before), 0), len(span)) for place in (start, stop))
        if low < high:
            low, high = span.start + low, span.start + high
            yield span.shard.input_ids[low:high], span.shard.unpack_word_starts(low, high)
        low, high = (max(place - len(before) - len(span), 0) for place in (start, stop))
        yield _special_run(after[low:high])


def _special_run(input_ids: list[int]) -> TokenRun:
    return np.array(input_ids, dtype=np.int32), np.ones(len(input_ids), dtype=np.bool_)


def _num_documents(shard: SplitShard) -> int:
    return shard.pairable.documents + shard.single_sentence.documents
