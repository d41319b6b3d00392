"""DistilBERT: a Batch in, an Encoded out. BERT's layers, half as many, without token types and with its own pooler.

N tokens, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from bertworks.encoders import bert
from bertworks.encoders.config import (
    SUPPORTED_VALUES,
    TRANSFORMER_PRESETS,
    EncoderConfig,
    check_activation,
    check_num_heads,
)
from bertworks.encoders.encoded import BatchLayout
from bertworks.encoders.encoder import Encoder, init_weights
from bertworks.encoders.family import Family
from bertworks.encoders.layers import ACTIVATIONS, Layer, LayerConfig
from bertworks.encoders.tensor_names import expand_weight_and_bias, layer_names
from bertworks.sampling.batch import Batch

# Of all norms; no key of its config.json.
_LAYER_NORM_EPS = 1e-12


@dataclass(frozen=True, kw_only=True)
class DistilbertConfig(EncoderConfig):
    """The config.json of a DistilBERT. The defaults are the released Base, with half the layers of BERT's."""

    model_type: ClassVar[str] = "distilbert"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **TRANSFORMER_PRESETS,
        "base": {**TRANSFORMER_PRESETS["base"], "num_hidden_layers": 6},
    }
    attribute_map: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "hidden_size": ("dim",),
        "num_hidden_layers": ("n_layers",),
        "num_attention_heads": ("n_heads",),
        "intermediate_size": ("hidden_dim",),
        "max_length": ("max_position_embeddings",),
        "hidden_act": ("activation",),
        "dropout_prob": ("dropout", "attention_dropout"),
    }
    supported_values: ClassVar[Mapping[str, Any]] = SUPPORTED_VALUES

    vocab_size: int = 30_522
    dim: int = 768
    n_layers: int = 6
    n_heads: int = 12
    hidden_dim: int = 3_072
    max_position_embeddings: int = 512
    activation: str = "gelu"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        check_num_heads(self.dim, self.n_heads)
        check_activation(self.activation, ACTIVATIONS)

    @property
    def hidden_size(self) -> int:
        return self.dim

    @property
    def num_hidden_layers(self) -> int:
        return self.n_layers

    @property
    def max_length(self) -> int:
        return self.max_position_embeddings

    @property
    def hidden_dropout_prob(self) -> float:
        return self.dropout

    @property
    def layer_config(self) -> LayerConfig:
        return LayerConfig(
            hidden_size=self.dim,
            num_attention_heads=self.n_heads,
            intermediate_size=self.hidden_dim,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.attention_dropout,
            hidden_act=self.activation,
            layer_norm_eps=_LAYER_NORM_EPS,
        )


class Distilbert(Encoder):
    """The encoder of DistilBERT. Its pooler is part of the heads for sequences in transformers."""

    config: DistilbertConfig
    has_graph = True
    pooler_activation = "relu"

    def __init__(self, config: DistilbertConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        self.token_embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.dim)
        self.norm = nn.LayerNorm(config.dim, eps=_LAYER_NORM_EPS)
        self.layers = nn.ModuleList(Layer(config.layer_config) for _ in range(config.n_layers))
        self.pooler = nn.Linear(config.dim, config.dim)
        init_weights(self, config.initializer_range, generator)

    def embed(self, batch: Batch, layout: BatchLayout, sparse_grad: bool = False) -> torch.Tensor:
        """Return (N, D): norm(token + position embedding)."""
        embeddings, positions, _ = self.lookup_embeddings(batch, layout, sparse_grad)
        return self.norm(embeddings + self.position_embeddings(positions))


_LAYER_NAMES = {
    "attention.query_key_value": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "attention.out": ("attention.out_lin",),
    "attention_norm": ("sa_layer_norm",),
    "intermediate": ("ffn.lin1",),
    "output": ("ffn.lin2",),
    "norm": ("output_layer_norm",),
}


def tensor_names(config: DistilbertConfig) -> dict[str, tuple[str, ...]]:
    """Return our name of each tensor -> transformers'."""
    return {
        "token_embeddings.weight": ("distilbert.embeddings.word_embeddings.weight",),
        "position_embeddings.weight": ("distilbert.embeddings.position_embeddings.weight",),
        **expand_weight_and_bias({"norm": ("distilbert.embeddings.LayerNorm",), "pooler": ("distilbert.pooler",)}),
        **layer_names("layers", "distilbert.transformer.layer", config.n_layers, _LAYER_NAMES),
    }


FAMILY = Family(
    config_class=DistilbertConfig,
    build=Distilbert,
    tensor_names=tensor_names,
    class_prefix="DistilBert",
    prefix="distilbert.",
    optional_prefixes=("distilbert.pooler.",),
    copies={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    heads={
        "mlm": {
            **expand_weight_and_bias({"dense": ("vocab_transform",), "norm": ("vocab_layer_norm",)}),
            "bias": ("vocab_projector.bias",),
        },
        "sequence": bert.HEADS["sequence"],
        "tokens": bert.HEADS["tokens"],
        "choices": bert.HEADS["choices"],
        "spans": bert.HEADS["spans"],
    },
    prefix_overrides={kind: {"distilbert.pooler.": "pre_classifier."} for kind in ("sequence", "choices")},
    has_token_types=False,
)
