"""Permutation language modeling: a Batch in, a Loss out. Positions are predicted in a random order (XLNet)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from bertworks.encoders.encoder import Encoder
from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.xlnet import Xlnet
from bertworks.objectives.loss import Loss
from bertworks.objectives.objective import Objective, ObjectiveModule
from bertworks.objectives.tied_lm import num_targets, tied_lm_loss
from bertworks.sampling.batch import Batch
from bertworks.sampling.blocks import Blocks
from bertworks.sampling.permutation import Permuter
from bertworks.sampling.streams import Streams


class PermutationHead(nn.Module):
    """The output bias; the rest of the output layer is the token embeddings."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(vocab_size))


class PermutationLmModule(ObjectiveModule):
    """A permutation language model: the query stream of an XLNet, with the token embeddings as the output layer."""

    kind = "permutation"
    heads: Mapping[str, str] = {"head": "permutation"}
    unused_parameters = ("encoder.pooler.",)

    def __init__(self, encoder: Encoder, generator: torch.Generator | None = None) -> None:
        super().__init__(encoder)
        assert isinstance(encoder, Xlnet), "only an XLNet has a query stream"
        self.head = PermutationHead(encoder.config.vocab_size)

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of targets of each part of the loss."""
        return {"permutation": num_targets(batch)}

    def forward(self, batch: Batch, scales: Mapping[str, float], seeds: DropoutSeeds | None = None) -> Loss:
        """Return the loss of a batch, multiplied by its scale."""
        return tied_lm_loss(self.encoder, batch, "permutation", scales["permutation"], seeds, self.head.bias)


PERMUTATION = Objective(
    name="permutation",
    sampler=Blocks,
    corruption=Permuter,
    build=PermutationLmModule,
    required_heads=("permutation",),
)
PERMUTATION_STREAM = Objective(
    name="permutation-stream",
    sampler=Streams,
    corruption=Permuter,
    build=PermutationLmModule,
    required_heads=("permutation",),
    is_stateful=True,
)
