"""Measure a module on batches it does not learn from: batches in, mean losses and accuracies out, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from bertworks.examples.batch import Batch
from bertworks.objectives.table import Objective
from bertworks.training.devices import Precision


@dataclass(frozen=True, slots=True)
class Scores:
    """Mean loss and share of right answers of each part, the one to choose models by first."""

    losses: dict[str, float]
    accuracies: dict[str, float]

    @property
    def loss(self) -> float:
        return next(iter(self.losses.values()))

    @property
    def accuracy(self) -> float:
        return next(iter(self.accuracies.values()))


@torch.no_grad()
def evaluate(module: Objective, batches: Iterable[Batch], precision: Precision = Precision()) -> Scores:
    """Return the scores over all batches; sums and counts are kept, nothing else."""
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    right: dict[str, int] = {}
    was_training = module.training
    module.eval()
    try:
        for batch in batches:
            with precision.context():
                loss = module(batch.to(precision.device), dict.fromkeys(module.counts(batch), 1.0))
            for name, part in loss.parts.items():
                sums[name] = sums.get(name, 0.0) + float(part.total)
                counts[name] = counts.get(name, 0) + part.count
                right[name] = right.get(name, 0) + (part.correct or 0)
    finally:
        module.train(was_training)
    return Scores(
        {name: total / counts[name] for name, total in sums.items()},
        {name: number / counts[name] for name, number in right.items()},
    )
