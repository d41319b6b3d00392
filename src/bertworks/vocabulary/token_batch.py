"""Encodings in, arrays of equal length out: input_ids, token_type_ids and attention_mask, padded.

B sequences, T positions.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bertworks.errors import InputError

Ints = npt.NDArray[np.int64]


class TokenIds(Protocol):
    """What a batch is made of: an Encoding."""

    @property
    def input_ids(self) -> tuple[int, ...]: ...
    @property
    def token_type_ids(self) -> tuple[int, ...]: ...


_NAMES = ("input_ids", "token_type_ids", "attention_mask")


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """A padded batch, (B, T) each; `attention_mask` is 0 at padding. `batch["input_ids"]` and `**batch` work, too."""

    input_ids: Ints
    token_type_ids: Ints
    attention_mask: Ints

    def to_dict(self) -> dict[str, Ints]:
        return {name: self[name] for name in self.keys()}

    def keys(self) -> tuple[str, ...]:
        return _NAMES

    def items(self) -> ItemsView[str, Ints]:
        return self.to_dict().items()

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __getitem__(self, name: str) -> Ints:
        if name not in _NAMES:
            raise KeyError(name)
        values: Ints = getattr(self, name)
        return values

    def __len__(self) -> int:
        return len(self.input_ids)

    def __repr__(self) -> str:
        return f"TokenBatch({len(self)} sequences of up to {self.input_ids.shape[1]} tokens)"


def pad_encodings(encodings: Sequence[TokenIds], pad: int) -> TokenBatch:
    """Return a batch, padded to its longest sequence."""
    if not encodings:
        raise InputError("there are no texts; give at least one")
    lengths = [len(encoding.input_ids) for encoding in encodings]
    input_ids = np.full((len(encodings), max(lengths)), pad, dtype=np.int64)
    token_type_ids, attention_mask = np.zeros_like(input_ids), np.zeros_like(input_ids)
    for index, (encoding, length) in enumerate(zip(encodings, lengths, strict=True)):
        input_ids[index, :length] = encoding.input_ids
        token_type_ids[index, :length] = encoding.token_type_ids
        attention_mask[index, :length] = 1
    return TokenBatch(input_ids, token_type_ids, attention_mask)
