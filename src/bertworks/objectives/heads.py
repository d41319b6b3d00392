"""The heads of pretraining: vectors of an encoder in, logits out; each with its table of Hugging Face's names.

P places to predict, B rows, D width, V pieces of the vocabulary. A head's weights are drawn by `bert.initialise`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from bertworks.encoders.layers import ACTIVATIONS
from bertworks.errors import SettingsError


class MaskedHead(nn.Module):
    """Which piece stood here? A transform, then a product with the piece embeddings, whose matrix is not the head's."""

    def __init__(self, width: int, vocabulary: int, activation: str = "gelu", norm_eps: float = 1e-12) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise SettingsError(f"there is no activation '{activation}'; choose one of: {', '.join(ACTIVATIONS)}")
        self.dense = nn.Linear(width, width)
        self.activation = ACTIVATIONS[activation]
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def transform(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return (P, D): what is compared with the embedding of each piece."""
        return self.norm(self.activation(self.dense(vectors)))

    def forward(self, vectors: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """Return the logits (P, V) of vectors (P, D), given the piece embeddings `table` (V, D)."""
        return F.linear(self.transform(vectors), table, self.bias)


class PairHead(nn.Module):
    """Does the second text follow the first? Logit 0 says yes, logit 1 says no."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 2)

    def forward(self, summary: torch.Tensor) -> torch.Tensor:
        """Return the logits (B, 2) of summaries (B, D)."""
        return self.score(summary)


# Our name of each tensor -> Hugging Face's. Their `cls.predictions.decoder` repeats the piece embeddings and the bias;
# transformers ties it by itself, so it is not written.
MASKED_NAMES = {
    "dense.weight": ("cls.predictions.transform.dense.weight",),
    "dense.bias": ("cls.predictions.transform.dense.bias",),
    "norm.weight": ("cls.predictions.transform.LayerNorm.weight",),
    "norm.bias": ("cls.predictions.transform.LayerNorm.bias",),
    "bias": ("cls.predictions.bias",),
}
PAIR_NAMES = {
    "score.weight": ("cls.seq_relationship.weight",),
    "score.bias": ("cls.seq_relationship.bias",),
}
