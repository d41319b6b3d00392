"""Collation: masked Examples in, a Batch of tensors out. The only module of the package that imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bertworks.sampling.example import Example
from bertworks.sampling.masking import MaskedExample
from bertworks.sampling.padding import TokenSequence, pad_sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The input of a model: B sequences of T positions, with their targets.

    input_ids         (B, T) padded on the right
    token_type_ids    (B, T) 0 or 1; XLNet's <cls> has 2
    lengths           (B,) number of tokens per sequence: the only information on padding
    attention         "bidirectional", "causal", or a (B, T, T) boolean mask; None: the default of the model
    positions         (P,) the positions to predict, as flat indices: sequence * T + position
    targets           (P,) the true token ids at these positions
    labels            by name: {"nsp": (B,)} and so on
    pair_starts       (B,) the position of the first token of the second text, where sequences are pairs
    groups            (B,) the example of each sequence, where several windows or choices belong to one example
    unknown           the spelling of out-of-vocabulary words by flat index, for character-level encoders
    auxiliary_batch   the same sequences with targets of a language model, for the auxiliary loss of a task
    permutation       (B, T) the factorization order: 0 for tokens visible from the start, then 1, 2, … for the
                      positions to predict, each of which sees those before it
    source            (B, S) the source sequences of a sequence-to-sequence model
    is_continuation   whether sequences continue those of the previous batch, index by index; False for the first batch
                      of a stream, None for independent sequences
    state             the encoder's state after the previous batch, for a continuation
    loss_part         the part of a task's loss that the labels belong to: the task itself, or distillation
    """

    input_ids: torch.Tensor
    token_type_ids: torch.Tensor
    lengths: torch.Tensor
    attention: str | torch.Tensor | None = None
    positions: torch.Tensor | None = None
    targets: torch.Tensor | None = None
    labels: dict[str, torch.Tensor] = field(default_factory=dict)
    pair_starts: torch.Tensor | None = None
    groups: torch.Tensor | None = None
    unknown: Mapping[int, str] = field(default_factory=dict)
    auxiliary_batch: Batch | None = None
    permutation: torch.Tensor | None = None
    source: Batch | None = None
    is_continuation: bool | None = None
    state: object | None = None
    loss_part: str = "task"

    @property
    def num_tokens(self) -> int:
        """The number of tokens, including those of the source."""
        return int(self.lengths.sum()) + (0 if self.source is None else self.source.num_tokens)

    def to(self, device: torch.device) -> Batch:
        """Return the batch on that device. Copies to a GPU are asynchronous."""
        if self.input_ids.device == device:
            return self
        return replace(
            self,
            **{
                item.name: _to_device(getattr(self, item.name), device)
                for item in fields(self)
                if item.name != "labels"
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
    """Collate examples, padded to the longest of them."""
    lengths = np.fromiter(map(len, examples), dtype=np.int64, count=len(examples))
    max_length = int(lengths.max())
    input_ids = np.full((len(examples), max_length), pad, dtype=np.int64)
    token_type_ids = np.zeros((len(examples), max_length), dtype=np.int64)
    for index, (example, masked_example) in enumerate(zip(examples, masked_examples, strict=True)):
        input_ids[index, : len(example)] = masked_example.input_ids
        token_type_ids[index, : len(example)] = example.token_type_ids
    positions = [masked_example.positions + index * max_length for index, masked_example in enumerate(masked_examples)]
    targets = [masked_example.targets for masked_example in masked_examples]
    labels = [example.label for example in examples if example.label is not None]
    permutations = [
        masked_example.permutation for masked_example in masked_examples if masked_example.permutation is not None
    ]
    return Batch(
        input_ids=torch.from_numpy(input_ids),
        token_type_ids=torch.from_numpy(token_type_ids),
        lengths=torch.from_numpy(lengths),
        positions=torch.from_numpy(np.concatenate(positions).astype(np.int64)),
        targets=torch.from_numpy(np.concatenate(targets).astype(np.int64)),
        labels={"nsp": torch.tensor(labels)} if labels else {},
        permutation=_pad(permutations, max_length) if permutations else None,
    )


def _pad(sequences: Sequence[npt.NDArray[np.int32]], length: int) -> torch.Tensor:
    """Return (B, T): the sequences, padded with zeros."""
    padded = np.zeros((len(sequences), length), dtype=np.int64)
    for index, values in enumerate(sequences):
        padded[index, : len(values)] = values
    return torch.from_numpy(padded)


def collate_sequences(sequences: Sequence[TokenSequence], pad: int) -> Batch:
    """Collate sequences in their order, padded to the longest of them, without targets."""
    padded = pad_sequences(sequences, pad)
    length = padded.input_ids.shape[1]
    return Batch(
        input_ids=torch.from_numpy(padded.input_ids),
        token_type_ids=torch.from_numpy(padded.token_type_ids),
        lengths=torch.from_numpy(padded.lengths),
        unknown={
            index * length + position: word
            for index, sequence in enumerate(sequences)
            for position, word in sequence.unknown.items()
        },
    )
