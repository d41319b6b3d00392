"""Padding: token sequences in, arrays of one shape out.

B sequences, T positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class TokenSequence(Protocol):
    """A sequence with special tokens: an Encoding, a Window."""

    @property
    def input_ids(self) -> Ints | tuple[int, ...]: ...
    @property
    def token_type_ids(self) -> Ints | tuple[int, ...]: ...
    @property
    def unknown(self) -> Mapping[int, str]: ...


@dataclass(frozen=True, slots=True)
class PaddedSequences:
    """Sequences (B, T), padded on the right, and the length of each (B,)."""

    input_ids: Ints
    token_type_ids: Ints
    lengths: Ints

    @property
    def attention_mask(self) -> Ints:
        """(B, T): 1 for a token, 0 for padding."""
        return (np.arange(self.input_ids.shape[1]) < self.lengths[:, None]).astype(np.int64)


def pad_sequences(sequences: Sequence[TokenSequence], pad: int) -> PaddedSequences:
    """Return sequences in their order, padded to the longest of them."""
    lengths = np.array([len(sequence.input_ids) for sequence in sequences], dtype=np.int64)
    input_ids = np.full((len(sequences), int(lengths.max())), pad, dtype=np.int64)
    token_type_ids = np.zeros_like(input_ids)
    for index, sequence in enumerate(sequences):
        input_ids[index, : lengths[index]] = sequence.input_ids
        token_type_ids[index, : lengths[index]] = sequence.token_type_ids
    return PaddedSequences(input_ids, token_type_ids, lengths)
