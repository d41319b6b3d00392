"""Features in, a Batch out: the longest sequences first, and which unit each belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from bertworks.sampling.batch import Batch, collate_sequences
from bertworks.tasks.contract import Features, InputSequence, Task


def batch_of_features(features: Sequence[Features], task: Task, pad: int) -> Batch:
    """Return a training batch. Units are numbered through the batch: those of the first example, of the second, …

    Sequences are sorted by length, so that those of equal length are computed in one attention call; `groups` and
    `positions` keep track of what belongs where.
    """
    sequences: list[tuple[InputSequence, int]] = []
    first_unit = 0
    for example_features in features:
        sequences += [(sequence, first_unit + sequence.unit) for sequence in example_features.sequences]
        first_unit += example_features.num_units
    sequences.sort(key=lambda pair: -len(pair[0]))
    batch = batch_of_input_sequences([sequence for sequence, _ in sequences], pad)
    labels = task.collate_labels(features)
    for name in sequences[0][0].labels:
        labels[name] = torch.tensor([sequence.labels[name] for sequence, _ in sequences])
    return replace(batch, labels=labels, groups=torch.tensor([unit for _, unit in sequences]))


def batch_of_input_sequences(sequences: Sequence[InputSequence], pad: int) -> Batch:
    """Return sequences as one batch, in their order, with their target positions."""
    batch = collate_sequences(sequences, pad)
    starts = [sequence.spans[1].position for sequence in sequences if len(sequence.spans) == 2]
    if len(starts) == len(sequences):
        batch = replace(batch, pair_starts=torch.tensor(starts))
    decoder_inputs = [sequence.target for sequence in sequences if sequence.target is not None]
    if decoder_inputs:
        batch = replace(collate_sequences(decoder_inputs, pad), source=batch)
    positions, targets = _positions_and_targets(sequences, batch.input_ids.shape[1])
    return replace(batch, positions=positions, targets=targets)


def _positions_and_targets(
    sequences: Sequence[InputSequence], length: int
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the target positions of all sequences (sequence * T + position), and their targets if all are known."""
    if sequences[0].positions is None:
        return None, None
    positions = [
        sequence.positions + index * length
        for index, sequence in enumerate(sequences)
        if sequence.positions is not None
    ]
    targets = [sequence.targets for sequence in sequences if sequence.targets is not None]
    all_targets = torch.from_numpy(np.concatenate(targets)) if len(targets) == len(sequences) else None
    return torch.from_numpy(np.concatenate(positions)), all_targets
