"""An objective in one file: the middle token of a block is masked, and nothing else is predicted."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from bertworks.encoders.encoder import Encoder, init_weights
from bertworks.encoders.layers import DropoutSeeds
from bertworks.objectives.cross_entropy import cross_entropy_loss
from bertworks.objectives.heads import MlmHead
from bertworks.objectives.loss import Loss
from bertworks.objectives.objective import Objective, ObjectiveModule
from bertworks.sampling.batch import Batch
from bertworks.sampling.blocks import Blocks
from bertworks.sampling.example import Example
from bertworks.sampling.masking import MaskedExample
from bertworks.vocabulary.tokenizer import Tokenizer


class MiddleMask:
    """The corruption: [MASK] at the middle position."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._mask_id = tokenizer.specials.mask

    def mask(self, example: Example, generator: np.random.Generator) -> MaskedExample:
        positions = np.array([len(example.input_ids) // 2])
        input_ids = example.input_ids.copy()
        targets = input_ids[positions].astype(np.int64)
        input_ids[positions] = self._mask_id
        return MaskedExample(input_ids, positions, targets)


class ClozeModule(ObjectiveModule):
    kind = "mlm"
    heads: Mapping[str, str] = {"mlm_head": "mlm"}
    unused_parameters = ("encoder.pooler.",)

    def __init__(self, encoder: Encoder, generator: torch.Generator | None = None) -> None:
        super().__init__(encoder)
        self.mlm_head = MlmHead(encoder.config)
        init_weights(self.mlm_head, encoder.config.initializer_range, generator)

    def counts(self, batch: Batch) -> dict[str, int]:
        assert batch.targets is not None
        return {"cloze": len(batch.targets)}

    def forward(self, batch: Batch, scales: Mapping[str, float], seeds: DropoutSeeds | None = None) -> Loss:
        assert batch.positions is not None
        assert batch.targets is not None
        encoded = self.encoder(batch, seeds=seeds, positions=batch.positions)
        vectors = self.mlm_head.transform(encoded.gather(batch.positions))
        table = self.encoder.token_embeddings.weight
        value, part = cross_entropy_loss(vectors, table, self.mlm_head.bias, batch.targets, scales["cloze"])
        return Loss(value, {"cloze": part})


OBJECTIVE = Objective(
    name="cloze",
    sampler=Blocks,
    corruption=lambda tokenizer, settings: MiddleMask(tokenizer),
    build=ClozeModule,
    required_heads=("mlm",),
)
