"""ALBERT: a Batch in, an Encoded out. Small embeddings that are projected once, and one layer that is run repeatedly.

N tokens, E embedding size, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from bertworks.encoders import bert
from bertworks.encoders.bert import BertConfig
from bertworks.encoders.config import OPTIONAL, TRANSFORMER_PRESETS
from bertworks.encoders.encoded import BatchLayout
from bertworks.encoders.encoder import Encoder, init_weights
from bertworks.encoders.family import Family
from bertworks.encoders.layers import Layer
from bertworks.encoders.tensor_names import expand_weight_and_bias
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch


@dataclass(frozen=True, kw_only=True)
class AlbertConfig(BertConfig):
    """The config.json of an ALBERT. Base and larger sizes are released; the smaller ones are ours."""

    model_type: ClassVar[str] = "albert"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **{name: {**preset, "embedding_size": 128} for name, preset in TRANSFORMER_PRESETS.items()},
        "tiny": {**TRANSFORMER_PRESETS["tiny"], "embedding_size": 64},
        "xlarge": {
            "num_hidden_layers": 24,
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "embedding_size": 128,
        },
        "xxlarge": {
            "num_hidden_layers": 12,
            "hidden_size": 4096,
            "num_attention_heads": 64,
            "embedding_size": 128,
        },
    }

    hidden_act: str = "gelu_new"
    embedding_size: int = field(default=128, metadata=OPTIONAL)
    num_hidden_groups: int = field(default=1, metadata=OPTIONAL)
    inner_group_num: int = field(default=1, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_hidden_groups > self.num_hidden_layers:
            raise SettingsError(
                f"num_hidden_groups is {self.num_hidden_groups}, but there are only {self.num_hidden_layers} layers; "
                f"correct config.json"
            )

    @property
    def token_embedding_size(self) -> int:
        return self.embedding_size

    @property
    def depth(self) -> int:
        return self.num_hidden_layers * self.inner_group_num


class Albert(Encoder):
    """The encoder of ALBERT, with its pooler."""

    config: AlbertConfig
    has_graph = True

    def __init__(self, config: AlbertConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        self.token_embeddings = nn.Embedding(config.vocab_size, config.embedding_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.embedding_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.embedding_size)
        self.norm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.embedding_projection = nn.Linear(config.embedding_size, config.hidden_size)
        num_layers = config.num_hidden_groups * config.inner_group_num
        self.layers = nn.ModuleList(Layer(config.layer_config) for _ in range(num_layers))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        init_weights(self, config.initializer_range, generator)

    @property
    def layer_sequence(self) -> Sequence[Layer]:
        """The layers of each group, repeated for its share of num_hidden_layers; all releases have one group of one."""
        num_layers, num_groups, num_inner = (
            self.config.num_hidden_layers,
            self.config.num_hidden_groups,
            self.config.inner_group_num,
        )
        groups = [int(index / (num_layers / num_groups)) for index in range(num_layers)]
        return [self.layers[group * num_inner + inner] for group in groups for inner in range(num_inner)]  # type: ignore[misc]

    def layer_depths(self) -> dict[str, int]:
        """Return the depth of each parameter; the layer of a group has the depth where it is run last."""
        last_depths = {id(layer): depth for depth, layer in enumerate(self.layer_sequence, 1)}
        depths = super().layer_depths()
        for index, layer in enumerate(self.layers):
            depths |= {f"layers.{index}.{name}": last_depths[id(layer)] for name, _ in layer.named_parameters()}
        return depths

    def embed(self, batch: Batch, layout: BatchLayout, sparse_grad: bool = False) -> torch.Tensor:
        """Return (N, D): norm(token + position + token type embedding) (N, E), projected."""
        embeddings, positions, token_types = self.lookup_embeddings(batch, layout, sparse_grad)
        x = self.norm(embeddings + self.position_embeddings(positions) + self.token_type_embeddings(token_types))
        return self.embedding_projection(x).to(x.dtype)


_LAYER_NAMES = {
    "attention.query_key_value": ("attention.query", "attention.key", "attention.value"),
    "attention.out": ("attention.dense",),
    "attention_norm": ("attention.LayerNorm",),
    "intermediate": ("ffn",),
    "output": ("ffn_output",),
    "norm": ("full_layer_layer_norm",),
}


def tensor_names(config: AlbertConfig) -> dict[str, tuple[str, ...]]:
    """Return our name of each tensor -> transformers'."""
    embeddings = {
        ours: tuple(name.replace("bert.", "albert.", 1) for name in theirs)
        for ours, theirs in bert.NAMES.items()
        if not ours.startswith("pooler.")
    }
    layers = {
        f"layers.{group * config.inner_group_num + inner}.{ours}": tuple(
            f"albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}.{name}" for name in theirs
        )
        for group in range(config.num_hidden_groups)
        for inner in range(config.inner_group_num)
        for ours, theirs in _LAYER_NAMES.items()
    }
    modules = {"embedding_projection": ("albert.encoder.embedding_hidden_mapping_in",), "pooler": ("albert.pooler",)}
    return {**embeddings, **expand_weight_and_bias(modules), **expand_weight_and_bias(layers)}


FAMILY = Family(
    config_class=AlbertConfig,
    build=Albert,
    tensor_names=tensor_names,
    class_prefix="Albert",
    prefix="albert.",
    optional_prefixes=("albert.pooler.",),
    copies={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    heads={
        "mlm": {
            **expand_weight_and_bias({"dense": ("predictions.dense",), "norm": ("predictions.LayerNorm",)}),
            "bias": ("predictions.bias",),
        },
        "nsp": expand_weight_and_bias({"score": ("sop_classifier.classifier",)}),
        "sequence": bert.HEADS["sequence"],
        "tokens": bert.HEADS["tokens"],
        "choices": bert.HEADS["choices"],
        "spans": bert.HEADS["spans"],
    },
)
