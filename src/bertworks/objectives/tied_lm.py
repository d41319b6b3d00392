"""A language model whose output layer is the token embeddings: an encoder and a Batch in, a Loss out.

P positions, V vocabulary.
"""

from __future__ import annotations

import torch

from bertworks.encoders.encoder import Encoder
from bertworks.encoders.layers import DropoutSeeds
from bertworks.objectives.cross_entropy import cross_entropy_loss
from bertworks.objectives.loss import Loss
from bertworks.sampling.batch import Batch


def num_targets(batch: Batch) -> int:
    assert batch.targets is not None
    return len(batch.targets)


def tied_lm_loss(
    encoder: Encoder,
    batch: Batch,
    part: str,
    scale: float,
    seeds: DropoutSeeds | None,
    bias: torch.Tensor | None = None,
) -> Loss:
    """Return the scaled loss at the positions of a batch, as the part of that name; `bias` (V,) is the output bias."""
    assert batch.positions is not None
    assert batch.targets is not None
    encoded = encoder(batch, batch.state, seeds, batch.positions, sparse_grad=True)
    table = encoder.token_embeddings.weight
    bias = table.new_zeros(len(table)) if bias is None else bias
    value, loss_part = cross_entropy_loss(encoded.gather(batch.positions), table, bias, batch.targets, scale)
    return Loss(value, {part: loss_part}, encoded.state)
