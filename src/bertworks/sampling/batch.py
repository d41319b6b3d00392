"""Batches: Examples with hidden places in, a Batch of tensors out. The only file of the room that imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from bertworks.sampling.example import Example
from bertworks.sampling.masking import MaskedExample


@dataclass(frozen=True, slots=True)
class Batch:
    """What a model reads: B rows of T places, and what it is asked there.

    ids        (B, T) pieces, padded at the right
    segments   (B, T) 0 or 1; XLNet's summary piece is in segment 2
    lengths    (B,)   how many places of a row are real: the only word on padding
    reads      who may read whom: "both", "left", or a (B, T, T) boolean tensor; None: as the model does by itself
    places     (P,)   the places to predict, counted through the batch: row * T + place
    targets    (P,)   the true pieces there
    labels     by head: {"pair": (B,)} and so on
    groups     (B,)   to which unit a row belongs, where several windows of a text, or several choices, are one example
    unknown    how words outside the vocabulary are written, by their places (row * T + place): for a model that reads
               writing
    masked     the same rows asked about their pieces, some hidden or all but the first, for a loss beside a task's
    source     what the rows are to say in other words, as a batch of its own: (B, S); read by each row besides its own
    permutation  (B, T) in which order a row is told: 0 what is known from the beginning, then 1, 2, … the places to
                 predict, each of which may read what was told before it
    goes_on    whether rows go on behind those of the batch before (in the same place of the step before): False where
               they begin, None where rows have nothing to do with one another
    state      what the rows before left, if they go on: the encoder's own
    """

    input_ids: torch.Tensor
    token_type_ids: torch.Tensor
    lengths: torch.Tensor
    attention: str | torch.Tensor | None = None
    positions: torch.Tensor | None = None
    targets: torch.Tensor | None = None
    labels: dict[str, torch.Tensor] = field(default_factory=dict)
    groups: torch.Tensor | None = None
    unknown: Mapping[int, str] = field(default_factory=dict)
    auxiliary_batch: Batch | None = None
    permutation: torch.Tensor | None = None
    source: Batch | None = None
    is_continuation: bool | None = None
    state: object | None = None

    @property
    def num_tokens(self) -> int:
        """How many pieces are read, those of a source too."""
        return int(self.lengths.sum()) + (0 if self.source is None else self.source.num_tokens)

    def to(self, device: torch.device) -> Batch:
        """Return the batch on that device; itself if it is there. The copy goes on while others compute."""
        if self.input_ids.device == device:
            return self
        return replace(
            self,
            **{
                part.name: _to_device(getattr(self, part.name), device)
                for part in fields(self)
                if part.name != "labels"
            },
            labels={name: _to_device(values, device) for name, values in self.labels.items()},
        )


def _to_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, Batch):
        return value.to(device)
    if not isinstance(value, torch.Tensor):
        return value
    if device.type == "cuda":
        return value.pin_memory().to(device, non_blocking=True)
    return value.to(device)


def collate_examples(examples: Sequence[Example], masked_examples: Sequence[MaskedExample], pad: int) -> Batch:
    """Return the examples as one batch, as wide as the longest of them."""
    lengths = np.fromiter(map(len, examples), dtype=np.int64, count=len(examples))
    width = int(lengths.max())
    ids = np.full((len(examples), width), pad, dtype=np.int64)
    segments = np.zeros((len(examples), width), dtype=np.int64)
    for row, (example, hid) in enumerate(zip(examples, masked_examples, strict=True)):
        ids[row, : len(example)] = hid.input_ids
        segments[row, : len(example)] = example.token_type_ids
    places = np.concatenate([hid.positions + row * width for row, hid in enumerate(masked_examples)]).astype(np.int64)
    targets = np.concatenate([hid.targets for hid in masked_examples]).astype(np.int64)
    labels = [example.label for example in examples if example.label is not None]
    orders = [hid.permutation for hid in masked_examples if hid.permutation is not None]
    return Batch(
        input_ids=torch.from_numpy(ids),
        token_type_ids=torch.from_numpy(segments),
        lengths=torch.from_numpy(lengths),
        positions=torch.from_numpy(places),
        targets=torch.from_numpy(targets),
        labels={"pair": torch.tensor(labels)} if labels else {},
        permutation=_pad(orders, width) if orders else None,
    )


def _pad(sequences: Sequence[npt.NDArray[np.int32]], length: int) -> torch.Tensor:
    """Return (B, T): the rows, with zeros behind them."""
    found = np.zeros((len(sequences), length), dtype=np.int64)
    for row, values in enumerate(sequences):
        found[row, : len(values)] = values
    return torch.from_numpy(found)


class TokenSequence(Protocol):
    """Anything that has the ids and segments of its pieces, special ones too, and the writing of unknown words: an
    Encoding, a Window."""

    @property
    def input_ids(self) -> npt.NDArray[np.int64] | tuple[int, ...]: ...
    @property
    def token_type_ids(self) -> npt.NDArray[np.int64] | tuple[int, ...]: ...
    @property
    def unknown(self) -> Mapping[int, str]: ...


def collate_sequences(sequences: Sequence[TokenSequence], pad: int) -> Batch:
    """Return rows as one batch, in their order and as wide as the longest of them; nothing is asked."""
    lengths = np.array([len(row.input_ids) for row in sequences], dtype=np.int64)
    ids = np.full((len(sequences), int(lengths.max())), pad, dtype=np.int64)
    segments = np.zeros_like(ids)
    unknown: dict[int, str] = {}
    for number, row in enumerate(sequences):
        unknown |= {number * ids.shape[1] + place: word for place, word in row.unknown.items()}
        ids[number, : lengths[number]] = row.input_ids
        segments[number, : lengths[number]] = row.token_type_ids
    return Batch(torch.from_numpy(ids), torch.from_numpy(segments), torch.from_numpy(lengths), unknown=unknown)
