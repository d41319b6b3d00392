"""Streams: the documents of a split as one endless token stream; any span of it in, an Example out.

Each document has its own special tokens, like a single text: [CLS] text [SEP]. After the last document the stream
starts again with the first. If a source has a weight other than 1, its documents occur more often, or a part of them in
each round.
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

# Special tokens per document.
_NUM_SPECIAL = 2

# Token ids, and whether a word begins with each token.
TokenRun = tuple[npt.NDArray[np.integer], npt.NDArray[np.bool_]]


class Streams:
    """Spans of an endless stream, of at most `max_length` and on average `mean_length` tokens.

    The ends of spans are moved by up to `jitter` tokens, so that a text is split at different positions in each round.
    """

    def __init__(self, split: CorpusSplit, max_length: int, specials: SpecialTokenIds) -> None:
        if max_length < 2:
            raise InputError(f"max_length is {max_length}; a span needs at least 2 positions, an input and its target")
        self.split, self.max_length, self.specials = split, max_length, specials
        self.jitter = max_length // 16
        self.mean_length = max_length - 2 * self.jitter
        self._shard_lengths = [shard.num_tokens + _NUM_SPECIAL * _num_documents(shard) for shard in split.shards]
        weighted_lengths = [
            max(1, round(length * shard.weight))
            for length, shard in zip(self._shard_lengths, split.shards, strict=True)
        ]
        self._ends = list(itertools.accumulate(weighted_lengths))

    @property
    def num_tokens(self) -> int:
        """The number of tokens per round, including special tokens."""
        return self._ends[-1]

    @property
    def num_anchors(self) -> int:
        return math.ceil(self.num_tokens / self.mean_length)

    def example(self, anchor: float, generator: np.random.Generator) -> Example:
        """Return the span at `anchor`; no randomness is used."""
        start = int(anchor * self.mean_length)
        return self.example_between(start, start + self.mean_length)

    def example_between(self, start: int, stop: int) -> Example:
        """Return the tokens start..stop-1 of the stream, with the token at `stop` as `next_token`."""
        runs = list(self._runs(start, stop + 1))
        input_ids = np.concatenate([ids for ids, _ in runs], dtype=np.int32)
        word_starts = np.concatenate([starts for _, starts in runs])[:-1]
        word_starts[0] = True  # the rest of a split word counts as a word
        return Example(
            input_ids=input_ids[:-1],
            token_type_ids=np.zeros(stop - start, dtype=np.int8),
            word_starts=word_starts,
            is_special=np.isin(input_ids[:-1], (self.specials.cls, self.specials.sep)),
            next_token=int(input_ids[-1]),
        )

    def _runs(self, start: int, stop: int) -> Iterator[TokenRun]:
        """Yield the runs of a span."""
        while start < stop:
            round_, position = divmod(start, self.num_tokens)
            index = bisect_right(self._ends, position)
            shard_start = self._ends[index - 1] if index else 0
            shard_length = self._shard_lengths[index]
            # A shard with a weight other than 1 continues in the next round where it stopped.
            offset = (position - shard_start + round_ * (self._ends[index] - shard_start)) % shard_length
            count = min(stop - start, self._ends[index] - position, shard_length - offset)
            yield from self._shard_runs(index, offset, offset + count)
            start += count

    def _shard_runs(self, index: int, start: int, stop: int) -> Iterator[TokenRun]:
        """Yield the runs from `start` to `stop` of a shard's documents, in tokens including special tokens."""
        shard, arrays = self.split.shards[index], self.split.shard_arrays(index)
        first_document = arrays.document_at(shard.first_token)

        def document_start(document: int) -> int:
            token = arrays.first_token(arrays.first_sentence(first_document + document))
            return token - shard.first_token + _NUM_SPECIAL * document

        document = bisect_right(range(_num_documents(shard)), start, key=document_start) - 1
        while start < stop:
            begin, end = document_start(document), document_start(document + 1)
            token = shard.first_token + begin - _NUM_SPECIAL * document
            span = ShardSpan(arrays, token, token + end - begin - _NUM_SPECIAL)
            yield from self._document_runs(span, start - begin, min(stop, end) - begin)
            start, document = end, document + 1

    def _document_runs(self, span: ShardSpan, start: int, stop: int) -> Iterator[TokenRun]:
        """Yield the runs from `start` to `stop` of a document with its special tokens."""
        template, specials = self.specials.template, self.specials
        before = [specials.cls] * template.num_before
        after = [specials.sep, *[specials.cls] * template.num_after]
        yield _special_run(before[start:stop])
        low, high = (min(max(bound - len(before), 0), len(span)) for bound in (start, stop))
        if low < high:
            low, high = span.start + low, span.start + high
            yield span.shard.input_ids[low:high], span.shard.unpack_word_starts(low, high)
        low, high = (max(bound - len(before) - len(span), 0) for bound in (start, stop))
        yield _special_run(after[low:high])


def _special_run(input_ids: list[int]) -> TokenRun:
    return np.array(input_ids, dtype=np.int32), np.ones(len(input_ids), dtype=np.bool_)


def _num_documents(shard: SplitShard) -> int:
    return shard.pairable.documents + shard.single_sentence.documents
