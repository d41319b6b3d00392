"""Predict the pieces of a permutation: a Batch in, a Loss out. Each place is asked when those before it were told."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.stack import Encoder
from bertworks.encoders.xlnet import Xlnet
from bertworks.objectives.loss import Loss
from bertworks.objectives.tied_lm import num_targets, tied_lm_loss
from bertworks.sampling.batch import Batch


class PermutationHead(nn.Module):
    """How frequent each piece is; all else is the product with the table of pieces, whose matrix is not the head's."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(vocab_size))


class PermutationLmObjective(nn.Module):
    """A permutation language model (XLNet): the second stream is compared with the table of pieces.

    Where rows go on behind those of the step before, they read what the model remembers of them.
    """

    kind = "permutation"
    heads: Mapping[str, str] = {"head": "permutation"}

    def __init__(self, encoder: Encoder, generator: torch.Generator | None = None) -> None:
        super().__init__()
        assert isinstance(encoder, Xlnet), "only an XLNet has a second stream"
        self.encoder = encoder
        self.head = PermutationHead(encoder.config.vocab_size)
        encoder.sparse_embedding_gradients = True  # scoring gives the whole table a gradient
        encoder.pooler.requires_grad_(False)  # nobody asks it

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return how many answers the loss will have."""
        return {"permutation": num_targets(batch)}

    def forward(self, batch: Batch, scales: Mapping[str, float], seeds: DropoutSeeds | None = None) -> Loss:
        """Return the loss of a batch, scaled as told for gradients."""
        return tied_lm_loss(self.encoder, batch, "permutation", scales["permutation"], seeds, self.head.bias)
