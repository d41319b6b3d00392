"""Static word vectors (Word2Vec, GloVe) as an encoder: a Batch of words in, an Encoded out, from one embedding table.

A word has the same vector in every context, and the pooled output is the mean of a sequence. transformers has no such
model, so the name of the tensor is ours.

B sequences, N words, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from bertworks.encoders import bert
from bertworks.encoders.config import EncoderConfig
from bertworks.encoders.dropout import dropout
from bertworks.encoders.encoded import BatchLayout, Encoded
from bertworks.encoders.encoder import Encoder, init_weights
from bertworks.encoders.family import Family
from bertworks.encoders.layers import DropoutSeeds
from bertworks.sampling.batch import Batch

# The name of the table in a model folder: that of sentence-transformers' StaticEmbedding.
TABLE = "embedding.weight"


@dataclass(frozen=True, kw_only=True)
class StaticConfig(EncoderConfig):
    """The config.json of static vectors. The presets have the sizes of published vectors."""

    model_type: ClassVar[str] = "static"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {"hidden_size": 50},
        "mini": {"hidden_size": 100},
        "small": {"hidden_size": 200},
        "base": {"hidden_size": 300},
    }
    attribute_map: ClassVar[Mapping[str, tuple[str, ...]]] = {"dropout_prob": ("hidden_dropout_prob",)}

    vocab_size: int = 30_522
    hidden_size: int = 300
    max_length: int = 512
    hidden_dropout_prob: float = 0.1
    initializer_range: float = 0.02

    @property
    def num_hidden_layers(self) -> int:
        return 0


class Static(Encoder):
    """An embedding table and no layers."""

    config: StaticConfig
    supported_attention = ("bidirectional",)

    def __init__(self, config: StaticConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        self.token_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList()
        init_weights(self, config.initializer_range, generator)

    @property
    def has_attention(self) -> bool:
        return False

    def embed(self, batch: Batch, layout: BatchLayout, sparse_grad: bool = False) -> torch.Tensor:
        """Return (N, D): the vector of each word."""
        return self.lookup_embeddings(batch, layout, sparse_grad)[0]

    def forward_layers(
        self,
        hidden_states: torch.Tensor,
        layout: BatchLayout,
        seeds: DropoutSeeds | None = None,
        positions: torch.Tensor | None = None,
    ) -> Encoded:
        """Return the vectors (N, D), or those at some positions, and the mean of each sequence."""
        seeds = seeds if self.training else None
        hidden_states = dropout(hidden_states, seeds.seed_for(0) if seeds else None, self.embedding_dropout_prob)
        padded = Encoded(hidden_states=(hidden_states,), pooled=None, layout=layout).to_padded()
        means = padded.sum(1) / layout.lengths[:, None]  # (B, D)
        if positions is not None:
            hidden_states = hidden_states[layout.token_indices(positions)]
        return Encoded(hidden_states=(hidden_states,), pooled=means, layout=layout, positions=positions)


def tensor_names(config: StaticConfig) -> dict[str, tuple[str, ...]]:
    """Return our name of the table -> its name in a folder."""
    return {"token_embeddings.weight": (TABLE,)}


FAMILY = Family(
    config_class=StaticConfig,
    build=Static,
    tensor_names=tensor_names,
    class_prefix="Static",
    prefix="embedding.",
    other_prefixes={"static.token_embeddings.": "embedding."},
    heads={kind: bert.HEADS[kind] for kind in ("sequence", "tokens", "choices", "spans")},
    learning_rate=1e-3,
    has_token_types=False,
    training_command="bertworks word-vectors train",
)
