"""Predict the next piece: a Batch in, a Loss out. Every place reads those before it and is scored on what follows."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.stack import Encoder
from bertworks.objectives.loss import Loss
from bertworks.objectives.tied_lm import num_targets, tied_lm_loss
from bertworks.sampling.batch import Batch


class CausalLmObjective(nn.Module):
    """A left-to-right language model: the last layer is compared with the table of pieces itself (GPT, AWD-LSTM).

    The encoder reads to the left from now on, also where it could read both ways: that is the paper's ablation.
    """

    kind = "causal"
    heads: Mapping[str, str] = {}

    def __init__(self, encoder: Encoder, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        encoder.attention = "causal"
        encoder.sparse_embedding_gradients = True  # scoring gives the whole table a gradient
        if hasattr(encoder, "pooler"):
            encoder.pooler.requires_grad_(False)  # nobody asks it

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return how many answers the loss will have."""
        return {"causal": num_targets(batch)}

    def forward(self, batch: Batch, scales: Mapping[str, float], seeds: DropoutSeeds | None = None) -> Loss:
        """Return the loss of a batch, scaled as told for gradients."""
        return tied_lm_loss(self.encoder, batch, "causal", scales["causal"], seeds)


def next_token_logits(encoder: Encoder, batch: Batch) -> torch.Tensor:
    """Return (B, V): the scores of every piece after the last one of each row."""
    width = batch.input_ids.shape[1]
    lasts = torch.arange(len(batch.input_ids), device=batch.input_ids.device) * width + batch.lengths - 1
    return encoder(batch, positions=lasts).gather(lasts) @ encoder.token_embeddings.weight.t()
