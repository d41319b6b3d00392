"""An encoder with the head of a task: a Batch in, outputs or a Loss out; what the loop trains when it fine-tunes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from bertworks.encoders.bert import Bert, initialise
from bertworks.encoders.layers import Seeds
from bertworks.examples.batch import Batch
from bertworks.objectives.heads import MaskedHead
from bertworks.objectives.loss import Loss, Part
from bertworks.objectives.scoring import cross_entropy_sum
from bertworks.tasks.contract import Task


@dataclass(frozen=True, slots=True)
class Auxiliary:
    """A masked-word loss beside the task's: the head that scores it, and how much it weighs."""

    head: MaskedHead
    weight: float


class TaskModule(nn.Module):
    """An encoder, the head of a task, and a masked-word head if there is an auxiliary loss."""

    def __init__(
        self, encoder: Bert, task: Task, generator: torch.Generator | None = None, auxiliary: Auxiliary | None = None
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.task = task
        self.head = task.head(encoder.sizes)
        initialise(self.head, encoder.sizes.spread, generator)
        self.masked = auxiliary.head if auxiliary is not None else None
        self.masked_weight = auxiliary.weight if auxiliary is not None else 0.0

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return how many answers each part of the loss will have."""
        found = {"task": self.task.num_answers(batch)}
        if batch.masked is not None:
            assert batch.masked.targets is not None
            found["masked"] = len(batch.masked.targets)
        return found

    def forward(self, batch: Batch, scales: Mapping[str, float], seeds: Seeds | None = None) -> Loss:
        """Return the loss of a batch; each part scaled as told, for gradients."""
        total = self.task.loss(self.outputs(batch, seeds), batch)
        value = total * scales["task"]
        parts = {"task": Part(total.detach(), self.task.num_answers(batch))}
        if batch.masked is not None:
            more = self._masked_loss(batch.masked, scales["masked"], seeds)
            assert batch.masked.targets is not None
            parts["masked"] = Part(more.detach() / scales["masked"], len(batch.masked.targets))
            value = value + self.masked_weight * more
        return Loss(value, parts)

    def outputs(self, batch: Batch, seeds: Seeds | None = None) -> torch.Tensor:
        """Return what the head answers."""
        return self.head(self.encoder(batch, seeds=seeds), batch, seeds)

    def _masked_loss(self, batch: Batch, scale: float, seeds: Seeds | None) -> torch.Tensor:
        """Return the scaled masked-word loss of a second pass, on a masked copy of the rows."""
        assert self.masked is not None
        assert batch.places is not None
        assert batch.targets is not None
        again = None if seeds is None else Seeds(seeds.base + 1)  # the second pass drops other values
        vectors = self.masked.transform(self.encoder(batch, seeds=again).at(batch.places))
        return cross_entropy_sum(vectors, self.encoder.pieces.weight, self.masked.bias, batch.targets, scale)
