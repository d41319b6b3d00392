"""Tell pieces by the table of pieces itself: an encoder and a Batch in, the Loss of the places that are asked out.

P places, V pieces.
"""

from __future__ import annotations

import torch

from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.stack import Encoder
from bertworks.objectives.cross_entropy import cross_entropy_loss
from bertworks.objectives.loss import Loss
from bertworks.sampling.batch import Batch


def num_targets(batch: Batch) -> int:
    """Return how many answers the loss of a batch will have."""
    assert batch.targets is not None
    return len(batch.targets)


def tied_lm_loss(
    encoder: Encoder,
    batch: Batch,
    name: str,
    scale: float,
    seeds: DropoutSeeds | None,
    bias: torch.Tensor | None = None,
) -> Loss:
    """Return the loss of that name, scaled as told for gradients, and what the rows leave for those behind them.

    The last layer is compared with each piece, to which `bias` (V,) is added: how frequent it is.
    """
    assert batch.positions is not None
    assert batch.targets is not None
    encoded = encoder(batch, batch.state, seeds, batch.positions)
    table = encoder.token_embeddings.weight
    bias = table.new_zeros(len(table)) if bias is None else bias
    value, part = cross_entropy_loss(encoded.gather(batch.positions), table, bias, batch.targets, scale)
    return Loss(value, {name: part}, encoded.state)
