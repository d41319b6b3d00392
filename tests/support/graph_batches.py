"""Batches for encoders in PyTorch and for graphs: a Batch in, its sequences out; an Encoded in, its tokens out."""

import torch

from bertworks.encoders.encoded import Encoded
from bertworks.sampling.batch import Batch
from bertworks.sampling.windows import Window


def sequences_of(batch: Batch) -> list[Window]:
    """Return the sequences of a batch without padding."""
    return [
        Window(input_ids[:length].numpy(), token_type_ids[:length].numpy(), ())
        for input_ids, token_type_ids, length in zip(
            batch.input_ids, batch.token_type_ids, batch.lengths.tolist(), strict=True
        )
    ]


def tokens_of(encoded: Encoded, batch: Batch) -> torch.Tensor:
    """Return (N, D): the last layer at all tokens, in the order of a graph."""
    mask = torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]
    return encoded.to_padded()[mask]
