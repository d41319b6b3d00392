"""The two shapes in which pieces leave a tokenizer: one by one with their places, or many in flat arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# Text in; for each of its characters whether a word begins there.
WordBoundaries = Callable[[str], npt.NDArray[np.bool_]]


class TokenWithOffsets(NamedTuple):
    """One piece: its id, where it stands in the original text, and whether a word begins with it."""

    id: int
    start: int
    end: int
    begins_word: bool


@dataclass(frozen=True, slots=True)
class FlatTokens:
    """The pieces of many sentences in a row.

    `ids` and `word_starts` have one element a piece; `sentence_ends[i]` is where sentence i ends among them.
    """

    input_ids: npt.NDArray[np.integer]
    sentence_ends: npt.NDArray[np.int64]
    word_starts: npt.NDArray[np.bool_]


def token_dtype(vocab_size: int) -> npt.DTypeLike:
    """Return the smallest unsigned integer type that holds the ids of a vocabulary of `size` pieces."""
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)
