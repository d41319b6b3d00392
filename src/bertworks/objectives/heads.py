"""The heads of pretraining: hidden states in, logits out.

P positions to predict, B sequences, D hidden size, E embedding size, V vocabulary. `encoders.encoder.init_weights`
initializes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from bertworks.encoders.config import EncoderConfig
from bertworks.encoders.encoder import Encoder
from bertworks.encoders.layers import ACTIVATIONS
from bertworks.sampling.batch import collate_sequences
from bertworks.sampling.padding import TokenSequence


class MlmHead(nn.Module):
    """The masked LM head: a transform, then the token embeddings as the output layer, and a bias of its own.

    Where all heads of a family share a transform, this one has none of its own: see `Encoder.transform_for_head`. With
    `untied`, `output` (V, E) is the output layer: models of others may have one. It is not trained here.
    """

    output: nn.Parameter | None

    def __init__(self, config: EncoderConfig, untied: bool = False) -> None:
        super().__init__()
        self.has_transform = config.has_mlm_transform
        if self.has_transform:
            self.dense = nn.Linear(config.hidden_size, config.token_embedding_size)
            self.activation = ACTIVATIONS[config.mlm_hidden_act]
            self.norm = nn.LayerNorm(config.token_embedding_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        output = nn.Parameter(torch.empty(config.vocab_size, config.token_embedding_size)) if untied else None
        self.register_parameter("output", output)

    def init_unigram_bias(self, token_counts: npt.NDArray[np.int64]) -> None:
        """Set the bias so that a head that knows nothing else predicts each token with its frequency."""
        # Add-one smoothing: a token that does not occur is improbable, not impossible.
        probs = torch.from_numpy((token_counts + 1) / (token_counts.sum() + len(token_counts)))
        with torch.no_grad():
            self.bias[: len(token_counts)].copy_(probs.log() - probs.log().mean())

    def transform(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return (P, E): norm(activation(dense(vectors))), the input of the output layer."""
        return self.norm(self.activation(self.dense(vectors))) if self.has_transform else vectors

    def forward(self, vectors: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """Return the logits (P, V) of vectors (P, D), given the token embeddings `table` (V, E)."""
        return F.linear(self.transform(vectors), table if self.output is None else self.output, self.bias)

    @torch.inference_mode()
    def logits_at(
        self,
        encoder: Encoder,
        sequences: Sequence[TokenSequence],
        positions: Sequence[npt.NDArray[np.int64]],
        pad: int,
    ) -> npt.NDArray[np.float32]:
        """Return the logits (P, V) at the positions of each sequence; `pad` is the padding token."""
        batch = collate_sequences(sequences, pad).to(encoder.device)
        length = batch.input_ids.shape[1]
        flat = np.concatenate([own_positions + index * length for index, own_positions in enumerate(positions)])
        flat_positions = torch.from_numpy(flat.astype(np.int64)).to(encoder.device)
        encoder.eval()
        encoded = encoder.transform_for_head(encoder(batch, positions=flat_positions))
        vectors = encoded.gather(flat_positions)
        return self(vectors, encoder.token_embeddings.weight).float().cpu().numpy()


class PairHead(nn.Module):
    """The head of next sentence prediction and sentence order prediction: logits 0 (is next, in order) and 1."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.score = nn.Linear(hidden_size, 2)

    def forward(self, pooled: torch.Tensor) -> torch.Tensor:
        """Return the logits (B, 2) of pooled outputs (B, D)."""
        return self.score(pooled)
