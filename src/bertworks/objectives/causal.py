"""Causal language modeling: a Batch in, a Loss out. Every position predicts the next token.

B sequences, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from bertworks.encoders.encoder import Encoder
from bertworks.encoders.layers import DropoutSeeds
from bertworks.objectives.loss import Loss
from bertworks.objectives.objective import Objective, ObjectiveModule
from bertworks.objectives.tied_lm import num_targets, tied_lm_loss
from bertworks.sampling.batch import Batch
from bertworks.sampling.blocks import Blocks
from bertworks.sampling.causal import NextTokenTargets
from bertworks.sampling.streams import Streams


class CausalLmModule(ObjectiveModule):
    """A causal language model whose output layer is the token embeddings (GPT, AWD-LSTM).

    An encoder that could attend in both directions gets causal attention: the paper's left-to-right ablation.
    """

    kind = "causal"
    heads: Mapping[str, str] = {}
    unused_parameters = ("encoder.pooler.",)

    def __init__(self, encoder: Encoder, generator: torch.Generator | None = None) -> None:
        super().__init__(encoder)

    @property
    def attention(self) -> str:
        return "causal"

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of targets of each part of the loss."""
        return {"causal": num_targets(batch)}

    def forward(self, batch: Batch, scales: Mapping[str, float], seeds: DropoutSeeds | None = None) -> Loss:
        """Return the loss of a batch, multiplied by its scale."""
        batch = replace(batch, attention=self.attention)
        return tied_lm_loss(self.encoder, batch, "causal", scales["causal"], seeds)


def next_token_logits(encoder: Encoder, batch: Batch) -> torch.Tensor:
    """Return (B, V): the logits of the token after the last one of each sequence."""
    num_sequences, length = batch.input_ids.shape
    last = torch.arange(num_sequences, device=batch.input_ids.device) * length + batch.lengths - 1
    return encoder(batch, positions=last).gather(last) @ encoder.token_embeddings.weight.t()


CAUSAL = Objective(
    name="causal",
    sampler=Blocks,
    corruption=lambda tokenizer, settings: NextTokenTargets(),
    build=CausalLmModule,
)
CAUSAL_STREAM = Objective(
    name="causal-stream",
    sampler=Streams,
    corruption=lambda tokenizer, settings: NextTokenTargets(),
    build=CausalLmModule,
    is_stateful=True,
)
