"""MPNet: a Batch in, an Encoded out. BERT's layers with a bias of the attention scores by relative position.

The bias belongs to the distance between two positions, in 32 buckets, and is shared by all layers. There are no token
types, and positions are counted from 2, as transformers does for any vocabulary.

T positions, N tokens, D hidden size, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import nn

from bertworks.encoders import bert, roberta
from bertworks.encoders.config import (
    SUPPORTED_VALUES,
    TRANSFORMER_PRESETS,
    EncoderConfig,
    check_activation,
    check_num_heads,
)
from bertworks.encoders.encoded import BatchLayout, SequenceGroup
from bertworks.encoders.encoder import Encoder, init_weights
from bertworks.encoders.family import Family
from bertworks.encoders.layers import ACTIVATIONS, Layer, LayerConfig
from bertworks.encoders.tensor_names import layer_names, replace_prefix
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch

# The id of the padding token, which transformers' positions depend on, whatever config.json says.
_PAD_TOKEN_ID = 1
# The number of buckets, and the distance from which on all are in the last one.
_NUM_BUCKETS, _MAX_DISTANCE = 32, 128


@dataclass(frozen=True, kw_only=True)
class MpnetConfig(EncoderConfig):
    """The config.json of an MPNet: max_position_embeddings counts the two rows that no token has."""

    model_type: ClassVar[str] = "mpnet"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = TRANSFORMER_PRESETS
    attribute_map: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "dropout_prob": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    }
    supported_values: ClassVar[Mapping[str, Any]] = {
        **SUPPORTED_VALUES,
        "relative_attention_num_buckets": _NUM_BUCKETS,
    }

    vocab_size: int = 30_527
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3_072
    max_position_embeddings: int = 514
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    layer_norm_eps: float = 1e-5
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        check_num_heads(self.hidden_size, self.num_attention_heads)
        check_activation(self.hidden_act, ACTIVATIONS)
        if self.max_length < 1:
            raise SettingsError(
                f"max_position_embeddings is {self.max_position_embeddings}, but the first two have no token; give it "
                f"3 or more"
            )

    @property
    def first_position(self) -> int:
        return _PAD_TOKEN_ID + 1

    @property
    def max_length(self) -> int:
        return self.max_position_embeddings - self.first_position

    @property
    def mlm_hidden_act(self) -> str:
        return "gelu"  # in transformers, whatever hidden_act is

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

    def resized(self, **changes: Any) -> Self:
        if "max_length" in changes:
            changes["max_position_embeddings"] = changes.pop("max_length") + self.first_position
        return super().resized(**changes)

    def with_pad_token_id(self, pad_token_id: int) -> Self:
        if pad_token_id != _PAD_TOKEN_ID:
            raise SettingsError(
                f"an MPNet needs a padding token with the id {_PAD_TOKEN_ID}, but that of the vocabulary has "
                f"{pad_token_id}; train a vocabulary with `bertworks vocab --kind byte-bpe`"
            )
        return self


class Mpnet(Encoder):
    """The encoder of MPNet, with its pooler."""

    config: MpnetConfig
    supported_attention = ("bidirectional", "mask")
    has_graph = True

    def __init__(self, config: MpnetConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        self.token_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.distance_bias = nn.Embedding(_NUM_BUCKETS, config.num_attention_heads)
        self.layers = nn.ModuleList(Layer(config.layer_config) for _ in range(config.num_hidden_layers))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        init_weights(self, config.initializer_range, generator)

    def embed(self, batch: Batch, layout: BatchLayout, sparse_grad: bool = False) -> torch.Tensor:
        """Return (N, D): norm(token + position embedding)."""
        embeddings, positions, _ = self.lookup_embeddings(batch, layout, sparse_grad)
        return self.norm(embeddings + self.position_embeddings(positions))

    def create_layout(self, batch: Batch) -> BatchLayout:
        """Return the layout of a batch; its groups have the bias."""
        layout = super().create_layout(batch)
        padding = layout.padding
        groups = layout.groups if padding is None else (*layout.groups, *padding.groups)
        bias = self.position_bias(max(group.length for group in groups))
        if padding is not None:
            padding = replace(padding, groups=_add_bias(padding.groups, bias))
        return replace(layout, groups=_add_bias(layout.groups, bias), padding=padding)

    def position_bias(self, length: int) -> torch.Tensor:
        """Return (1, H, T, T): the bias of each query and key of a sequence."""
        bias = self._bias_by_distance(length)  # (H, 2T - 1)
        positions = torch.arange(length, device=bias.device)
        return bias[:, positions - positions[:, None] + length - 1][None]

    def graph_tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors of its ONNX graph; the bias is by distance, for sequences up to the maximal length."""
        tensors = super().graph_tensors()
        del tensors["distance_bias.weight"]
        return {**tensors, "distance_bias": self._bias_by_distance(self.config.max_length)}

    def _bias_by_distance(self, length: int) -> torch.Tensor:
        """Return (H, 2T - 1): the bias of the distances from 1 - T to T - 1, of a key from its query."""
        distances = torch.arange(1 - length, length, device=self.distance_bias.weight.device)
        return self.distance_bias(distance_buckets(distances)).t()


def distance_buckets(distances: torch.Tensor) -> torch.Tensor:
    """Return the bucket of each distance: 16 for keys up to the query, 16 for those behind it.

    Of each 16, eight are for single distances from 0 to 7, and eight for ranges that grow with the logarithm.
    """
    per_side = _NUM_BUCKETS // 2
    num_exact = per_side // 2
    magnitudes = distances.abs()
    ratios = torch.log(magnitudes.clamp(min=num_exact).float() / num_exact) / math.log(_MAX_DISTANCE / num_exact)
    ranges = num_exact + (ratios * (per_side - num_exact)).long()
    buckets = torch.where(magnitudes < num_exact, magnitudes, ranges.clamp(max=per_side - 1))
    return buckets + per_side * (distances > 0)


def _add_bias(groups: tuple[SequenceGroup, ...], bias: torch.Tensor) -> tuple[SequenceGroup, ...]:
    return tuple(replace(group, bias=bias[..., : group.length, : group.length]) for group in groups)


_LAYER_NAMES = {
    "attention.query_key_value": ("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    "attention.out": ("attention.attn.o",),
    "attention_norm": ("attention.LayerNorm",),
    "intermediate": ("intermediate.dense",),
    "output": ("output.dense",),
    "norm": ("output.LayerNorm",),
}


def tensor_names(config: MpnetConfig) -> dict[str, tuple[str, ...]]:
    """Return our name of each tensor -> transformers'."""
    names = replace_prefix(bert.NAMES, "bert.", "mpnet.")
    del names["token_type_embeddings.weight"]
    names["distance_bias.weight"] = ("mpnet.encoder.relative_attention_bias.weight",)
    return names | layer_names("layers", "mpnet.encoder.layer", config.num_hidden_layers, _LAYER_NAMES)


FAMILY = Family(
    config_class=MpnetConfig,
    build=Mpnet,
    tensor_names=tensor_names,
    class_prefix="MPNet",
    prefix="mpnet.",
    optional_prefixes=("mpnet.pooler.",),
    copies={
        "lm_head.decoder.weight": "mpnet.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    heads=roberta.HEADS,
    # With a head for sequences the pooler is part of that head.
    prefix_overrides={"sequence": {"mpnet.pooler.dense.": "classifier.dense."}},
    has_token_types=False,
)
