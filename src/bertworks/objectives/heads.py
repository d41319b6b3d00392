"""The heads of pretraining: vectors of an encoder in, logits out.

P places to predict, B rows, D width, E width of the table of pieces, V pieces of the vocabulary. A head's weights are
drawn by `stack.initialise`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from bertworks.encoders.layers import ACTIVATIONS
from bertworks.encoders.stack import BertConfig


class MlmHead(nn.Module):
    """Which piece stood here? A transform, then a product with the piece embeddings, whose matrix is not the head's."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.token_embedding_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.norm = nn.LayerNorm(config.token_embedding_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def transform(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return (P, E): what is compared with the embedding of each piece."""
        return self.norm(self.activation(self.dense(vectors)))

    def forward(self, vectors: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """Return the logits (P, V) of vectors (P, D), given the piece embeddings `table` (V, D)."""
        return F.linear(self.transform(vectors), table, self.bias)


class PairHead(nn.Module):
    """Does the second text follow the first? Logit 0 says yes, logit 1 says no."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.score = nn.Linear(hidden_size, 2)

    def forward(self, pooled: torch.Tensor) -> torch.Tensor:
        """Return the logits (B, 2) of summaries (B, D)."""
        return self.score(pooled)
