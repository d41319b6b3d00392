"""Tokens without special tokens, as arrays: of one text with offsets, or of many sentences without."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt

# Text in, one flag per character out: whether a word begins there.
WordBoundaries = Callable[[str], npt.NDArray[np.bool_]]
# A token as (id, start, end, begins_word), with offsets into the text.
TokenTuple = tuple[int, int, int, bool]


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """The N tokens of one text, without special tokens.

    input_ids     (N,)
    offsets       (N, 2) start and end of each token in the original text
    word_starts   (N,) whether a word begins with the token
    unknown       the spelling of each out-of-vocabulary word, by the index of its token
    """

    input_ids: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    word_starts: npt.NDArray[np.bool_]
    unknown: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def from_tuples(cls, tokens: Sequence[TokenTuple]) -> TokenizedText:
        # Over a flat iterator: np.array on a list of tuples takes twice the time.
        table = np.fromiter(chain.from_iterable(tokens), np.int64, 4 * len(tokens)).reshape(-1, 4)
        return cls(table[:, 0], table[:, 1:3], table[:, 3].astype(bool))

    @classmethod
    def from_ids(cls, input_ids: npt.NDArray[np.int64], unknown: Mapping[int, str] | None = None) -> TokenizedText:
        """Return tokens with unknown offsets (all zero), each of them a word."""
        return cls(
            input_ids,
            np.zeros((len(input_ids), 2), dtype=np.int64),
            np.ones(len(input_ids), dtype=np.bool_),
            unknown or {},
        )

    @classmethod
    def concatenate(cls, parts: Sequence[TokenizedText]) -> TokenizedText:
        """Return the tokens of all parts; offsets remain relative to the text of each part."""
        starts = np.cumsum([0, *map(len, parts)]).tolist()
        unknown = {
            start + index: word
            for start, part in zip(starts, parts, strict=False)
            for index, word in part.unknown.items()
        }
        arrays = zip(*((part.input_ids, part.offsets, part.word_starts) for part in parts), strict=True)
        input_ids, offsets, word_starts = map(np.concatenate, arrays)
        return cls(input_ids, offsets, word_starts, unknown)

    def between(self, start: int, stop: int) -> TokenizedText:
        """Return the tokens with indices start..stop-1."""
        span = slice(start, stop)
        unknown = {index - start: word for index, word in self.unknown.items() if start <= index < stop}
        return TokenizedText(self.input_ids[span], self.offsets[span], self.word_starts[span], unknown)

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True, slots=True)
class FlatTokens:
    """The N tokens of many sentences in one array each, without offsets.

    input_ids       (N,)
    sentence_ends   the index behind the last token of each sentence
    word_starts     (N,) whether a word begins with the token
    """

    input_ids: npt.NDArray[np.integer]
    sentence_ends: npt.NDArray[np.int64]
    word_starts: npt.NDArray[np.bool_]


def token_dtype(vocab_size: int) -> npt.DTypeLike:
    """Return the smallest unsigned integer dtype that holds the token ids of a vocabulary."""
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)
