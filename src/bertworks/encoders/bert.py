"""BERT: a Batch in, an Encoded out. Bidirectional Transformer layers over token, position and token type embeddings.

N tokens, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

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


@dataclass(frozen=True, kw_only=True)
class BertConfig(EncoderConfig):
    """The config.json of a BERT. The defaults are the paper's Base."""

    model_type: ClassVar[str] = "bert"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = TRANSFORMER_PRESETS
    attribute_map: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "max_length": ("max_position_embeddings",),
        "dropout_prob": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    }
    supported_values: ClassVar[Mapping[str, Any]] = SUPPORTED_VALUES

    vocab_size: int = 30_522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3_072
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        check_num_heads(self.hidden_size, self.num_attention_heads)
        check_activation(self.hidden_act, ACTIVATIONS)

    @property
    def max_length(self) -> int:
        return self.max_position_embeddings

    @property
    def layer_config(self) -> LayerConfig:
        return LayerConfig(
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            intermediate_size=self.intermediate_size,
            hidden_dropout_prob=self.hidden_dropout_prob,
            attention_probs_dropout_prob=self.attention_probs_dropout_prob,
            hidden_act=self.hidden_act,
            layer_norm_eps=self.layer_norm_eps,
        )


class Bert(Encoder):
    """The encoder of BERT and RoBERTa, with its pooler."""

    config: BertConfig
    has_graph = True

    def __init__(self, config: BertConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        self.token_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.layers = nn.ModuleList(Layer(config.layer_config) for _ in range(config.num_hidden_layers))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        init_weights(self, config.initializer_range, generator)

    def embed(self, batch: Batch, layout: BatchLayout, sparse_grad: bool = False) -> torch.Tensor:
        """Return (N, D): norm(token + position + token type embedding)."""
        embeddings, positions, token_types = self.lookup_embeddings(batch, layout, sparse_grad)
        return self.norm(embeddings + self.position_embeddings(positions) + self.token_type_embeddings(token_types))

    def graph_tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors of its ONNX graph; the embedding of a single token type is added to those of positions."""
        tensors = super().graph_tensors()
        if self.config.type_vocab_size == 1:
            tensors["position_embeddings.weight"] = tensors["position_embeddings.weight"] + tensors.pop(
                "token_type_embeddings.weight"
            )
        return tensors


# Our query, key and value are one matrix.
NAMES: dict[str, tuple[str, ...]] = {
    "token_embeddings.weight": ("bert.embeddings.word_embeddings.weight",),
    "position_embeddings.weight": ("bert.embeddings.position_embeddings.weight",),
    "token_type_embeddings.weight": ("bert.embeddings.token_type_embeddings.weight",),
    "norm.weight": ("bert.embeddings.LayerNorm.weight",),
    "norm.bias": ("bert.embeddings.LayerNorm.bias",),
    "pooler.weight": ("bert.pooler.dense.weight",),
    "pooler.bias": ("bert.pooler.dense.bias",),
}
LAYER_NAMES = {
    "attention.query_key_value": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.out": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "intermediate": ("intermediate.dense",),
    "output": ("output.dense",),
    "norm": ("output.LayerNorm",),
}
# transformers ties `cls.predictions.decoder` to the embeddings and the bias on loading, so it is not written.
HEADS = {
    "mlm": {
        **expand_weight_and_bias(
            {"dense": ("cls.predictions.transform.dense",), "norm": ("cls.predictions.transform.LayerNorm",)}
        ),
        "bias": ("cls.predictions.bias",),
    },
    "nsp": expand_weight_and_bias({"score": ("cls.seq_relationship",)}),
    "sequence": expand_weight_and_bias({"score": ("classifier",)}),
    "tokens": expand_weight_and_bias({"score": ("classifier",)}),
    "choices": expand_weight_and_bias({"score": ("classifier",)}),
    "spans": expand_weight_and_bias({"score": ("qa_outputs",)}),
}


def tensor_names(config: BertConfig) -> dict[str, tuple[str, ...]]:
    """Return our name of each tensor -> transformers'."""
    return {**NAMES, **layer_names("layers", "bert.encoder.layer", config.num_hidden_layers, LAYER_NAMES)}


FAMILY = Family(
    config_class=BertConfig,
    build=Bert,
    tensor_names=tensor_names,
    class_prefix="Bert",
    prefix="bert.",
    optional_prefixes=("bert.pooler.",),
    copies={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    heads=HEADS,
)
