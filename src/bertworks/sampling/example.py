"""What leaves the arranging of sentences: an Example, unmasked, as numpy arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bertworks.corpus.shard import ShardArrays
from bertworks.vocabulary.tokenizer import SpecialTokenIds


@dataclass(frozen=True, slots=True)
class Example:
    """One input of a model before anything is hidden. All arrays have one element a piece.

    `word_starts` is False inside a word; special pieces are never part of one (see `is_special`).
    `label` is the answer about the pair: 0 where the second text follows the first (or stands in order), 1 where it
    is random (or swapped), None where there is no question. `behind` is the piece that follows the last one, where an
    example is a stretch of a text that goes on.
    """

    input_ids: npt.NDArray[np.int32]
    token_type_ids: npt.NDArray[np.int8]
    word_starts: npt.NDArray[np.bool_]
    is_special: npt.NDArray[np.bool_]
    label: int | None = None
    next_token: int | None = None

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True, slots=True)
class ShardSpan:
    """A run of pieces of one shard."""

    shard: ShardArrays
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def assemble(spans: list[tuple[ShardSpan, int]], specials: SpecialTokenIds, label: int | None = None) -> Example:
    """Return [CLS] span [SEP] span [SEP] …, each span with its separator in the given segment; XLNet's [CLS] is last.

    Consecutive spans of one segment are separated too: that is how a block marks the end of a document.
    """
    frame = specials.template
    size = frame.num_before + sum(len(span) + 1 for span, _ in spans) + frame.num_after
    ids = np.empty(size, dtype=np.int32)
    segments = np.zeros(size, dtype=np.int8)
    word_starts = np.ones(size, dtype=np.bool_)
    is_special = np.zeros(size, dtype=np.bool_)
    place, segments[-1] = (0, 0) if frame.num_before else (-1, frame.token_type_ids[2])
    ids[place] = specials.cls
    is_special[place] = True
    at = frame.num_before
    for span, segment in spans:
        stop = at + len(span)
        ids[at:stop] = span.shard.input_ids[span.start : span.stop]
        word_starts[at:stop] = span.shard.unpack_word_starts(span.start, span.stop)
        ids[stop] = specials.sep
        is_special[stop] = True
        segments[at : stop + 1] = segment
        # A span may have been cut inside a word: what is left of the word begins where the span does.
        word_starts[at] = True
        at = stop + 1
    return Example(ids, segments, word_starts, is_special, label)
