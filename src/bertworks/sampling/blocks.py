"""Blocks of whole sentences, across document boundaries: an anchor in a split in, an Example of one segment out."""

from __future__ import annotations

import math

import numpy as np

from bertworks.corpus.corpus import CorpusSplit
from bertworks.errors import InputError
from bertworks.sampling.example import Example, ShardSpan, assemble
from bertworks.vocabulary.tokenizer import SpecialTokenIds


class Blocks:
    """As many consecutive whole sentences as fit; a separator marks the end of a document (RoBERTa)."""

    def __init__(self, split: CorpusSplit, max_length: int, specials: SpecialTokenIds) -> None:
        if max_length < 3:
            raise InputError(f"max_length is {max_length}; a block needs at least 3 positions ([CLS] a [SEP])")
        self.split, self.max_length, self.specials = split, max_length, specials

    @property
    def num_anchors(self) -> int:
        return math.ceil(self.split.length / (self.max_length - 2))

    def example(self, anchor: float, generator: np.random.Generator) -> Example:
        """Return the example at `anchor` (fractional: the offset of the epoch is added); no randomness is used."""
        num_free = self.max_length - 2
        position = self.split.position_at(anchor / self.num_anchors * self.split.length)
        shard, sentence = position.shard, position.sentence
        start = shard.first_token(sentence)
        if shard.first_token(sentence + 1) - start > num_free:  # longer than a block: start at the anchor
            stop = min(position.token + num_free, shard.first_token(sentence + 1))
            return assemble([(ShardSpan(shard, position.token, stop), 0)], self.specials)
        spans: list[tuple[ShardSpan, int]] = []
        region_end = self.split.region_end(position)
        while sentence < region_end and num_free > 0:
            _, document_end = shard.document_span(sentence)
            start = shard.first_token(sentence)
            # The last sentence that fits ends at or before start + num_free.
            stop_sentence = min(shard.sentence_at(start + num_free), document_end)
            if stop_sentence == sentence:
                break
            stop = shard.first_token(stop_sentence)
            spans.append((ShardSpan(shard, start, stop), 0))
            num_free -= stop - start + 1
            if stop_sentence < document_end:
                break
            sentence = stop_sentence
        return assemble(spans, self.specials)
