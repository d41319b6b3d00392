"""Evaluate an objective on held-out batches: batches in, mean losses and accuracies out, in bounded memory.

With several processes, each evaluates its own batches, and all of them get the scores over all batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from bertworks.objectives.objective import ObjectiveModule
from bertworks.parallel.process_group import all_reduce_sum
from bertworks.sampling.batch import Batch
from bertworks.training.devices import Precision
from bertworks.training.stateful import StatefulBatches


@dataclass(frozen=True, slots=True)
class Scores:
    """Mean loss and accuracy of each loss part; the first part is the one for model selection."""

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
    module: ObjectiveModule,
    batches: Iterable[Batch],
    precision: Precision = Precision(),
    num_scored_batches: int | None = None,
) -> Scores:
    """Return the scores over all batches; only sums and counts are held in memory.

    With `num_scored_batches`, only the first batches count: processes of a sharded model run as many forward passes as
    the one with the most batches.
    """
    sums: dict[str, list[float]] = {}  # loss part -> [loss, number of targets, number of correct ones]
    stateful_batches = StatefulBatches()
    was_training = module.training
    module.eval()
    try:
        for number, batch in enumerate(batches):
            with precision.autocast():
                loss = module(
                    stateful_batches.attach_state(batch.to(precision.device)), dict.fromkeys(module.counts(batch), 1.0)
                )
            stateful_batches.collect(loss.state)
            stateful_batches.end_step()
            is_scored = num_scored_batches is None or number < num_scored_batches
            for name, part in loss.parts.items():
                previous = sums.get(name, [0.0, 0.0, 0.0])
                values = (float(part.total), part.count, part.correct or 0)
                sums[name] = [total + is_scored * value for total, value in zip(previous, values, strict=True)]
    finally:
        module.train(was_training)
    flat = all_reduce_sum([number for part in sums.values() for number in part])
    totals = {name: flat[3 * index : 3 * index + 3] for index, name in enumerate(sums)}
    return Scores(
        {name: loss / count for name, (loss, count, _) in totals.items()},
        {name: correct / count for name, (_, count, correct) in totals.items()},
    )
