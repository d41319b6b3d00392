"""DeBERTa-v2 and v3: a Batch in, an Encoded out. Layers with disentangled attention, and no position embeddings.

Supported is what DeBERTa-v3 computes: relative positions in logarithmic buckets, whose normalized embeddings all layers
share, queries and keys of positions projected as those of tokens, and no convolution.

N tokens, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch
from torch import nn

from bertworks.encoders import bert
from bertworks.encoders.bert import BertConfig
from bertworks.encoders.config import OPTIONAL_OR_ZERO, SUPPORTED_VALUES
from bertworks.encoders.disentangled_attention import (
    DisentangledAttention,
    DisentangledLayout,
    log_buckets,
    relative_positions,
)
from bertworks.encoders.encoded import BatchLayout
from bertworks.encoders.encoder import Encoder, init_weights
from bertworks.encoders.family import Family
from bertworks.encoders.layers import Layer, LayerConfig
from bertworks.encoders.memory import FLOAT_BYTES, ActivationBytes, transformer_activation_bytes
from bertworks.encoders.tensor_names import expand_weight_and_bias, layer_names, replace_prefix
from bertworks.errors import SettingsError, show_value
from bertworks.sampling.batch import Batch

# For position_buckets and max_relative_positions: none, and as many as max_position_embeddings.
_NO_LIMIT = {"optional": True, "minimum": -1}


@dataclass(frozen=True, kw_only=True)
class DebertaV2Config(BertConfig):
    """The config.json of a DeBERTa-v2. The defaults are DeBERTa-v3-base.

    position_buckets         number of buckets of relative positions in each direction; -1: one for each position
    max_relative_positions   positions from which on all are in the last bucket; -1: max_position_embeddings
    """

    model_type: ClassVar[str] = "deberta-v2"
    supported_values: ClassVar[Mapping[str, Any]] = {**SUPPORTED_VALUES, "conv_kernel_size": 0, "z_steps": 0}
    required_values: ClassVar[Mapping[str, Any]] = {
        "relative_attention": True,
        "position_biased_input": False,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "pos_att_type": ["p2c", "c2p"],
    }

    vocab_size: int = 128_100
    type_vocab_size: int = field(default=0, metadata=OPTIONAL_OR_ZERO)
    layer_norm_eps: float = 1e-7
    position_buckets: int = field(default=256, metadata=_NO_LIMIT)
    max_relative_positions: int = field(default=-1, metadata=_NO_LIMIT)
    pooler_hidden_act: str = "gelu"

    def check_supported(self, config_dict: Mapping[str, Any]) -> None:
        types = config_dict.get("pos_att_type")
        types = types.lower().split("|") if isinstance(types, str) else types
        names = {name.strip() for name in types if isinstance(name, str)} if isinstance(types, list) else set()
        is_complete = names == set(self.required_values["pos_att_type"])
        known = {"pos_att_type": self.required_values["pos_att_type"]} if is_complete else {}
        super().check_supported({**config_dict, **known})
        for key, value in (
            ("embedding_size", self.hidden_size),
            ("pooler_hidden_size", self.hidden_size),
            ("attention_head_size", self.hidden_size // self.num_attention_heads),
        ):
            if config_dict.get(key) not in (None, value):
                raise SettingsError(
                    f"{key} is {show_value(config_dict[key])}, but only {value} is supported with this hidden_size; "
                    f"choose another model"
                )

    @property
    def relative_size(self) -> int:
        """The number of relative embeddings in each direction."""
        return self.position_buckets if self.position_buckets > 0 else self.relative_limit

    @property
    def relative_limit(self) -> int:
        """The number of relative positions that are distinguished in each direction."""
        return self.max_relative_positions if self.max_relative_positions > 0 else self.max_position_embeddings

    def activation_bytes(self, max_length: int) -> ActivationBytes:
        """Relative scores are saved before dropout, and their gradients take as much as those of attention weights."""
        plain = transformer_activation_bytes(self.layer_config, max_length, self.target_ratio)
        weights = FLOAT_BYTES * self.num_attention_heads * max_length
        return ActivationBytes(
            layer=plain.layer + 3 * weights,
            last_layer=plain.last_layer + 3 * weights,
            gradients=plain.gradients + 6 * weights,
        )


class DebertaLayer(Layer):
    """A layer of DeBERTa."""

    def __init__(self, config: LayerConfig) -> None:
        attention = DisentangledAttention(
            config.hidden_size, config.num_attention_heads, config.attention_probs_dropout_prob
        )
        super().__init__(config, attention)


class DebertaV2(Encoder):
    """The encoder of DeBERTa-v2 and v3. Its pooler is part of the heads for sequences in transformers."""

    config: DebertaV2Config
    supported_attention = ("bidirectional", "mask")
    has_graph = True

    def __init__(self, config: DebertaV2Config, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        self.pooler_activation = config.pooler_hidden_act
        self.token_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        if config.type_vocab_size:
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.relative_embeddings = nn.Embedding(2 * config.relative_size, config.hidden_size)
        self.relative_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.layers = nn.ModuleList(DebertaLayer(config.layer_config) for _ in range(config.num_hidden_layers))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        init_weights(self, config.initializer_range, generator)

    def embed(self, batch: Batch, layout: BatchLayout, sparse_grad: bool = False) -> torch.Tensor:
        """Return (N, D): norm(token + token type embedding); positions enter in the attention."""
        embeddings, _, token_types = self.lookup_embeddings(batch, layout, sparse_grad)
        return self.norm(
            embeddings + self.token_type_embeddings(token_types) if self.config.type_vocab_size else embeddings
        )

    def create_layout(self, batch: Batch) -> DisentangledLayout:
        """Return the layout of a batch, with the embeddings of its relative positions."""
        layout = super().create_layout(batch)
        return DisentangledLayout(
            **{part.name: getattr(layout, part.name) for part in fields(BatchLayout)},
            relative_embeddings=self._relative_embeddings(max(group.length for group in layout.groups)),
        )

    def graph_tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors of its ONNX graph; relative embeddings are normalized, up to the maximal length."""
        tensors = super().graph_tensors()
        for name in ("relative_embeddings.weight", "relative_norm.weight", "relative_norm.bias"):
            del tensors[name]
        return {**tensors, "relative_embeddings": self._relative_embeddings(self.config.max_length)}

    def _relative_embeddings(self, length: int) -> torch.Tensor:
        """Return (L, D): the normalized embeddings of the relative positions of sequences of this length."""
        config, table = self.config, self.relative_norm(self.relative_embeddings.weight)
        positions = relative_positions(length, table.device)
        if config.position_buckets > 0:
            positions = log_buckets(positions, config.position_buckets, config.relative_limit)
        size = config.relative_size
        return table[(positions + size).clamp(0, 2 * size - 1)]


_LAYER_NAMES = {
    **bert.LAYER_NAMES,
    "attention.query_key_value": (
        "attention.self.query_proj",
        "attention.self.key_proj",
        "attention.self.value_proj",
    ),
}


def tensor_names(config: DebertaV2Config) -> dict[str, tuple[str, ...]]:
    """Return our name of each tensor -> transformers'."""
    names = replace_prefix(bert.NAMES, "bert.", "deberta.")
    del names["position_embeddings.weight"]
    if not config.type_vocab_size:
        del names["token_type_embeddings.weight"]
    names["relative_embeddings.weight"] = ("deberta.encoder.rel_embeddings.weight",)
    names |= expand_weight_and_bias({"relative_norm": ("deberta.encoder.LayerNorm",)})
    return names | layer_names("layers", "deberta.encoder.layer", config.num_hidden_layers, _LAYER_NAMES)


FAMILY = Family(
    config_class=DebertaV2Config,
    build=DebertaV2,
    tensor_names=tensor_names,
    class_prefix="DebertaV2",
    prefix="deberta.",
    optional_prefixes=("deberta.pooler.",),
    copies={
        "cls.predictions.decoder.weight": "deberta.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    heads={kind: bert.HEADS[kind] for kind in ("mlm", "sequence", "tokens", "choices", "spans")},
    prefix_overrides={kind: {"deberta.pooler.": "pooler."} for kind in ("sequence", "choices")},
)
