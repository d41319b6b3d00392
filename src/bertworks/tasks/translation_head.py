"""The head of translation: an encoder with a decoder and a Batch in, losses of its target sequences out.

B sequences, P target positions, D hidden size, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import nn

from bertworks.encoders.encoder import Encoder
from bertworks.encoders.layers import DropoutSeeds
from bertworks.objectives.cross_entropy import cross_entropy_sum, evaluate_cross_entropy, token_losses
from bertworks.sampling.batch import Batch


class TranslationHead(nn.Module):
    """The bias of the output logits; the output weights are the token embeddings.

    It is not trained: the paper has none, and models of others may bring one.
    """

    bias: torch.Tensor  # (1, V)

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.register_buffer("bias", torch.zeros(1, vocab_size))


def translation_loss(
    encoder: Encoder, head: nn.Module, batch: Batch, seeds: DropoutSeeds | None, smoothing: float
) -> torch.Tensor:
    """Return the summed loss, label-smoothed in training; the logits (P, V) are never materialized at once."""
    vectors, embeddings, bias, targets = _loss_inputs(encoder, head, batch, seeds)
    if torch.is_grad_enabled():
        return cross_entropy_sum(vectors, embeddings, bias, targets, 1.0, smoothing)
    return evaluate_cross_entropy(vectors, embeddings, bias, targets)[0]


def _loss_inputs(
    encoder: Encoder, head: nn.Module, batch: Batch, seeds: DropoutSeeds | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the decoder's outputs (P, D), the token embeddings (V, D), the bias (V,) and the targets (P,)."""
    assert batch.positions is not None
    assert batch.targets is not None
    bias: torch.Tensor = head.bias[0]  # type: ignore[index]
    return encoder(batch, seeds=seeds).gather(batch.positions), encoder.token_embeddings.weight, bias, batch.targets


def reference_losses(encoder: Encoder, head: nn.Module, batch: Batch) -> torch.Tensor:
    """Return (B, 2): the summed loss of each gold translation, and its number of tokens."""
    losses_by_sequence = torch.zeros(len(batch.input_ids), 2, device=batch.input_ids.device)
    if batch.positions is None or batch.targets is None or not len(batch.targets):
        return losses_by_sequence
    sequences = batch.positions // batch.input_ids.shape[1]
    losses = token_losses(*_loss_inputs(encoder, head, batch, None)).to(losses_by_sequence.dtype)
    return losses_by_sequence.index_add(0, sequences, torch.stack([losses, torch.ones_like(losses)], 1))
