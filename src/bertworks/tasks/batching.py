"""Rows with questions in, a Batch out: the longest first, and to which example each belongs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from bertworks.sampling.batch import Batch, batch_of_rows
from bertworks.tasks.contract import Asked, Question, Task


def batch_of_questions(questions: Sequence[Question], task: Task, pad: int) -> Batch:
    """Return a batch to learn from. Units are counted through it: those of the first example, of the second, and so on.

    Rows of equal length lie together, the longest first, so that they are attended together; `groups` and `places` say
    what belongs where.
    """
    rows: list[tuple[Asked, int]] = []
    first_unit = 0
    for question in questions:
        rows += [(row, first_unit + row.unit) for row in question.rows]
        first_unit += question.num_units
    rows.sort(key=lambda pair: -len(pair[0].window))
    batch = batch_of_asked([row for row, _ in rows], pad)
    labels = task.labels_of(questions)
    for name in rows[0][0].labels:
        labels[name] = torch.tensor([row.labels[name] for row, _ in rows])
    return replace(batch, labels=labels, groups=torch.tensor([unit for _, unit in rows]))


def batch_of_asked(rows: Sequence[Asked], pad: int) -> Batch:
    """Return rows as one batch, in their order, with the places that are asked."""
    batch = batch_of_rows([row.window for row in rows], pad)
    said = [row.target for row in rows if row.target is not None]
    if said:
        batch = replace(batch_of_rows(said, pad), source=batch)
    places, targets = _places(rows, batch.ids.shape[1])
    return replace(batch, places=places, targets=targets)


def _places(rows: Sequence[Asked], width: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the places of all rows that are asked, counted through the batch, and what stands there if it is known."""
    if rows[0].places is None:
        return None, None
    places = [row.places + at * width for at, row in enumerate(rows) if row.places is not None]
    targets = [row.targets for row in rows if row.targets is not None]
    told = torch.from_numpy(np.concatenate(targets)) if len(targets) == len(rows) else None
    return torch.from_numpy(np.concatenate(places)), told
