"""Masked language modeling, alone or with next sentence or sentence order prediction: a Batch in, a Loss out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812

from bertworks.encoders.encoder import Encoder, init_weights
from bertworks.encoders.layers import DropoutSeeds
from bertworks.objectives.cross_entropy import cross_entropy_loss
from bertworks.objectives.heads import MlmHead, PairHead
from bertworks.objectives.loss import Loss, LossPart
from bertworks.objectives.objective import Objective, ObjectiveModule
from bertworks.sampling.batch import Batch
from bertworks.sampling.blocks import Blocks
from bertworks.sampling.masking import Masker
from bertworks.sampling.pairs import NextSentencePairs, SentenceOrderPairs


class MlmModule(ObjectiveModule):
    """An encoder with the heads of pretraining. The loss is the mean over masked tokens plus the mean over pairs."""

    def __init__(self, encoder: Encoder, generator: torch.Generator | None = None, has_pair_head: bool = True) -> None:
        super().__init__(encoder)
        config = encoder.config
        self.mlm_head = MlmHead(config)
        init_weights(self.mlm_head, config.initializer_range, generator)
        self.pair_head = PairHead(config.hidden_size) if has_pair_head else None
        if self.pair_head is not None:
            init_weights(self.pair_head, config.initializer_range, generator)
        self.kind = "pretraining" if has_pair_head else "mlm"
        self.heads = {"mlm_head": "mlm", "pair_head": "nsp"} if has_pair_head else {"mlm_head": "mlm"}
        has_pooler = has_pair_head or not config.has_mlm_transform
        self.unused_parameters = () if has_pooler else ("encoder.pooler.",)

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of targets of each part of the loss."""
        assert batch.targets is not None
        counts = {"mlm": len(batch.targets)}
        if self.pair_head is not None:
            counts["nsp"] = len(batch.labels["nsp"])
        return counts

    def forward(self, batch: Batch, scales: Mapping[str, float], seeds: DropoutSeeds | None = None) -> Loss:
        """Return the loss of a batch, each part multiplied by its scale."""
        assert batch.positions is not None
        assert batch.targets is not None
        encoded = self.encoder(batch, seeds=seeds, positions=batch.positions, sparse_grad=True)
        encoded = self.encoder.transform_for_head(encoded)
        table = self.encoder.token_embeddings.weight
        vectors = self.mlm_head.transform(encoded.gather(batch.positions))
        value, part = cross_entropy_loss(vectors, table, self.mlm_head.bias, batch.targets, scales["mlm"])
        parts = {"mlm": part}
        if self.pair_head is not None:
            logits, labels = self.pair_head(encoded.pooled).to(table.dtype), batch.labels["nsp"]
            total = F.cross_entropy(logits, labels, reduction="sum")
            parts["nsp"] = LossPart(total.detach(), len(labels), int((logits.argmax(-1) == labels).sum()))
            value = value + total * scales["nsp"]
        return Loss(value, parts)


MLM_NSP = Objective(
    name="mlm-nsp",
    sampler=NextSentencePairs,
    corruption=Masker,
    build=partial(MlmModule, has_pair_head=True),
    required_heads=("mlm", "nsp"),
    label_names=("segment B follows segment A", "segment B is random"),
    pair_task="NSP",
)
MLM_SOP = Objective(
    name="mlm-sop",
    sampler=SentenceOrderPairs,
    corruption=Masker,
    build=partial(MlmModule, has_pair_head=True),
    required_heads=("mlm", "nsp"),
    label_names=("segments in order", "segments swapped"),
    pair_task="SOP",
)
MLM = Objective(
    name="mlm",
    sampler=Blocks,
    corruption=Masker,
    build=partial(MlmModule, has_pair_head=False),
    required_heads=("mlm",),
)
