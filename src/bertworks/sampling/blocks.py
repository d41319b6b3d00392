"""Blocks of full sentences across document ends: an anchor in a split in, an Example of one segment out."""

from __future__ import annotations

import math

import numpy as np

from bertworks.corpus.corpus import CorpusSplit
from bertworks.errors import InputError
from bertworks.sampling.example import Example, ShardSpan, assemble
from bertworks.vocabulary.tokenizer import SpecialTokenIds


class Blocks:
    """As many whole sentences as fit, in their order; a separator stands where a document ends (RoBERTa)."""

    def __init__(self, split: CorpusSplit, max_length: int, specials: SpecialTokenIds) -> None:
        if max_length < 3:
            raise InputError(f"a block needs at least 3 places ([CLS] a [SEP]); the length is {max_length}")
        self.split, self.max_length, self.specials = split, max_length, specials

    @property
    def num_anchors(self) -> int:
        return math.ceil(self.split.length / (self.max_length - 2))

    def example(self, anchor: float, generator: np.random.Generator) -> Example:
        """Return the example of `anchor` (a number of anchors, with its epoch's shift added); it draws nothing."""
        room = self.max_length - 2
        place = self.split.position_at(anchor / self.num_anchors * self.split.length)
        shard, sentence = place.shard, place.sentence
        start = shard.first_token(sentence)
        if shard.first_token(sentence + 1) - start > room:  # longer than a block: begin where the anchor is
            stop = min(place.token + room, shard.first_token(sentence + 1))
            return assemble([(ShardSpan(shard, place.token, stop), 0)], self.specials)
        spans: list[tuple[ShardSpan, int]] = []
        end_of_split = self.split.region_end(place)
        while sentence < end_of_split and room > 0:
            _, document_end = shard.document_span(sentence)
            start = shard.first_token(sentence)
            # The last sentence that still fits ends at or before start + room.
            stop_sentence = min(shard.sentence_at(start + room), document_end)
            if stop_sentence == sentence:
                break
            stop = shard.first_token(stop_sentence)
            spans.append((ShardSpan(shard, start, stop), 0))
            room -= stop - start + 1
            if stop_sentence < document_end:
                break
            sentence = stop_sentence
        return assemble(spans, self.specials)
