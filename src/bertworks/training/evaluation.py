"""Measure a module on batches it does not learn from: batches in, mean losses and accuracies out, in bounded memory.

Where several processes share a run, each measures its batches, and all get the scores of all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from bertworks.objectives.registry import Objective
from bertworks.sampling.batch import Batch
from bertworks.training.devices import Precision
from bertworks.training.loop import all_reduce_sum
from bertworks.training.stateful import StatefulBatches


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
def evaluate(
    module: Objective,
    batches: Iterable[Batch],
    precision: Precision = Precision(),
    num_scored_batches: int | None = None,
) -> Scores:
    """Return the scores over all batches; sums and counts are kept, nothing else.

    Of the batches only the first `num_counted` count, if that is given: the others are computed along with processes
    that have more.
    """
    sums: dict[str, list[float]] = {}  # of each part: its loss, its answers, the right ones
    carrying = StatefulBatches()
    was_training = module.training
    module.eval()
    try:
        for number, batch in enumerate(batches):
            with precision.autocast():
                loss = module(
                    carrying.attach_state(batch.to(precision.device)), dict.fromkeys(module.counts(batch), 1.0)
                )
            carrying.collect(loss.state)
            carrying.end_step()
            counts = num_scored_batches is None or number < num_scored_batches
            for name, part in loss.parts.items():
                before = sums.get(name, [0.0, 0.0, 0.0])
                told = (float(part.total), part.count, part.correct or 0)
                sums[name] = [one + counts * more for one, more in zip(before, told, strict=True)]
    finally:
        module.train(was_training)
    flat = all_reduce_sum([number for one in sums.values() for number in one])
    found = {name: flat[3 * place : 3 * place + 3] for place, name in enumerate(sums)}
    return Scores(
        {name: total / count for name, (total, count, _) in found.items()},
        {name: right / count for name, (_, count, right) in found.items()},
    )
