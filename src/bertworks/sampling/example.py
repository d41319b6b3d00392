"""The output of the samplers: an Example, unmasked, as numpy arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bertworks.corpus.shard import ShardArrays
from bertworks.vocabulary.tokenizer import SpecialTokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One input sequence before masking. Arrays have one element per token.

    word_starts   False inside a word; special tokens are not part of words (see `is_special`)
    label         of a pair: 0 if segment B follows segment A (or they are in order), 1 if it is random (or they are
                  swapped); None for other examples
    next_token    the token after the last one, where the example is a span of a stream
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
    """A span of tokens in one shard."""

    shard: ShardArrays
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def assemble(spans: list[tuple[ShardSpan, int]], specials: SpecialTokenIds, label: int | None = None) -> Example:
    """Return [CLS] span [SEP] span [SEP] …, each span and its separator of the given token type (XLNet: <cls> is last).

    A separator also stands between two spans of the same type: in a block it marks the end of a document.
    """
    template = specials.template
    length = template.num_before + sum(len(span) + 1 for span, _ in spans) + template.num_after
    input_ids = np.empty(length, dtype=np.int32)
    token_type_ids = np.zeros(length, dtype=np.int8)
    word_starts = np.ones(length, dtype=np.bool_)
    is_special = np.zeros(length, dtype=np.bool_)
    cls_position, token_type_ids[-1] = (0, 0) if template.num_before else (-1, template.token_type_ids[2])
    input_ids[cls_position] = specials.cls
    is_special[cls_position] = True
    start = template.num_before
    for span, token_type in spans:
        stop = start + len(span)
        input_ids[start:stop] = span.shard.input_ids[span.start : span.stop]
        word_starts[start:stop] = span.shard.unpack_word_starts(span.start, span.stop)
        input_ids[stop] = specials.sep
        is_special[stop] = True
        token_type_ids[start : stop + 1] = token_type
        # The span may start inside a word: the rest of the word counts as a word.
        word_starts[start] = True
        start = stop + 1
    return Example(
        input_ids=input_ids,
        token_type_ids=token_type_ids,
        word_starts=word_starts,
        is_special=is_special,
        label=label,
    )
