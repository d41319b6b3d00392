"""Rows with questions in, a Batch out: the longest first, and to which example each belongs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from bertworks.sampling.batch import Batch, collate_sequences
from bertworks.tasks.contract import Features, InputSequence, Task


def batch_of_features(features: Sequence[Features], task: Task, pad: int) -> Batch:
    """Return a batch to learn from. Units are counted through it: those of the first example, of the second, and so on.

    Rows of equal length lie together, the longest first, so that they are attended together; `groups` and `places` say
    what belongs where.
    """
    rows: list[tuple[InputSequence, int]] = []
    first_unit = 0
    for question in features:
        rows += [(row, first_unit + row.unit) for row in question.sequences]
        first_unit += question.num_units
    rows.sort(key=lambda pair: -len(pair[0].window))
    batch = batch_of_input_sequences([row for row, _ in rows], pad)
    labels = task.collate_labels(features)
    for name in rows[0][0].labels:
        labels[name] = torch.tensor([row.labels[name] for row, _ in rows])
    return replace(batch, labels=labels, groups=torch.tensor([unit for _, unit in rows]))


def batch_of_input_sequences(sequences: Sequence[InputSequence], pad: int) -> Batch:
    """Return rows as one batch, in their order, with the places that are asked."""
    batch = collate_sequences([row.window for row in sequences], pad)
    said = [row.target for row in sequences if row.target is not None]
    if said:
        batch = replace(collate_sequences(said, pad), source=batch)
    places, targets = _positions(sequences, batch.input_ids.shape[1])
    return replace(batch, positions=places, targets=targets)


def _positions(sequences: Sequence[InputSequence], length: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the places of all rows that are asked, counted through the batch, and what stands there if it is known."""
    if sequences[0].positions is None:
        return None, None
    places = [row.positions + at * length for at, row in enumerate(sequences) if row.positions is not None]
    targets = [row.targets for row in sequences if row.targets is not None]
    told = torch.from_numpy(np.concatenate(targets)) if len(targets) == len(sequences) else None
    return torch.from_numpy(np.concatenate(places)), told
