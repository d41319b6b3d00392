"""Pretraining objectives: a Batch in, a Loss out. Masked pieces, and whether the two segments belong together."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from bertworks.encoders.layers import Seeds
from bertworks.encoders.stack import Stack, initialise
from bertworks.objectives.cross_entropy import scored_sum
from bertworks.objectives.heads import MaskedHead, PairHead
from bertworks.objectives.loss import Loss, Part
from bertworks.sampling.batch import Batch


class Pretraining(nn.Module):
    """An encoder with the heads of an objective. Its loss is the mean over hidden places plus the mean over pairs."""

    def __init__(self, encoder: Stack, generator: torch.Generator | None = None, asks_pair: bool = True) -> None:
        super().__init__()
        sizes = encoder.sizes
        self.encoder = encoder
        self.masked = MaskedHead(sizes)
        initialise(self.masked, sizes.spread, generator)
        self.pair = PairHead(sizes.width) if asks_pair else None
        if self.pair is not None:
            initialise(self.pair, sizes.spread, generator)
        # Without a pair nothing asks the pooler: no gradient would ever come, for which an optimizer's state and the
        # exchange between processes would wait.
        encoder.pooler.requires_grad_(self.pair is not None)
        encoder.adds_rows = True  # the masked head gives the whole table a gradient

    @property
    def kind(self) -> str:
        return "masked" if self.pair is None else "masked and pair"

    @property
    def heads(self) -> dict[str, str]:
        return {"masked": "masked"} if self.pair is None else {"masked": "masked", "pair": "pair"}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return how many answers each part of the loss will have: known before anything is computed."""
        assert batch.targets is not None
        found = {"masked": len(batch.targets)}
        if self.pair is not None:
            found["pair"] = len(batch.labels["pair"])
        return found

    def forward(self, batch: Batch, scales: Mapping[str, float], seeds: Seeds | None = None) -> Loss:
        """Return the loss of a batch; each part scaled as told, for gradients."""
        assert batch.places is not None
        assert batch.targets is not None
        encoded = self.encoder(batch, seeds=seeds, places=batch.places)
        table = self.encoder.pieces.weight
        vectors = self.masked.transform(encoded.at(batch.places))
        value, part = scored_sum(vectors, table, self.masked.bias, batch.targets, scales["masked"])
        parts = {"masked": part}
        if self.pair is not None:
            answers, labels = self.pair(encoded.summary), batch.labels["pair"]
            total = F.cross_entropy(answers, labels, reduction="sum")
            parts["pair"] = Part(total.detach(), len(labels), int((answers.argmax(-1) == labels).sum()))
            value = value + total * scales["pair"]
        return Loss(value, parts)
