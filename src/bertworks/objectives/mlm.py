"""Pretraining objectives: a Batch in, a Loss out. Masked pieces, and whether the two segments belong together."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.stack import Encoder, initialise
from bertworks.objectives.cross_entropy import cross_entropy_loss
from bertworks.objectives.heads import MlmHead, PairHead
from bertworks.objectives.loss import Loss, LossPart
from bertworks.sampling.batch import Batch


class MlmObjective(nn.Module):
    """An encoder with the heads of an objective. Its loss is the mean over hidden places plus the mean over pairs."""

    def __init__(self, encoder: Encoder, generator: torch.Generator | None = None, has_pair_head: bool = True) -> None:
        super().__init__()
        sizes = encoder.config
        self.encoder = encoder
        self.mlm_head = MlmHead(sizes)
        initialise(self.mlm_head, sizes.initializer_range, generator)
        self.pair_head = PairHead(sizes.hidden_size) if has_pair_head else None
        if self.pair_head is not None:
            initialise(self.pair_head, sizes.initializer_range, generator)
        # Without a pair nothing asks the pooler: no gradient would ever come, for which an optimizer's state and the
        # exchange between processes would wait.
        encoder.pooler.requires_grad_(self.pair_head is not None)
        encoder.sparse_embedding_gradients = True  # the masked head gives the whole table a gradient

    @property
    def kind(self) -> str:
        return "mlm" if self.pair_head is None else "pretraining"

    @property
    def heads(self) -> dict[str, str]:
        return {"mlm_head": "mlm"} if self.pair_head is None else {"mlm_head": "mlm", "pair_head": "nsp"}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return how many answers each part of the loss will have: known before anything is computed."""
        assert batch.targets is not None
        found = {"mlm": len(batch.targets)}
        if self.pair_head is not None:
            found["nsp"] = len(batch.labels["nsp"])
        return found

    def forward(self, batch: Batch, scales: Mapping[str, float], seeds: DropoutSeeds | None = None) -> Loss:
        """Return the loss of a batch; each part scaled as told, for gradients."""
        assert batch.positions is not None
        assert batch.targets is not None
        encoded = self.encoder(batch, seeds=seeds, positions=batch.positions)
        table = self.encoder.token_embeddings.weight
        vectors = self.mlm_head.transform(encoded.gather(batch.positions))
        value, part = cross_entropy_loss(vectors, table, self.mlm_head.bias, batch.targets, scales["mlm"])
        parts = {"mlm": part}
        if self.pair_head is not None:
            answers, labels = self.pair_head(encoded.pooled), batch.labels["nsp"]
            total = F.cross_entropy(answers, labels, reduction="sum")
            parts["nsp"] = LossPart(total.detach(), len(labels), int((answers.argmax(-1) == labels).sum()))
            value = value + total * scales["nsp"]
        return Loss(value, parts)
