"""DeBERTa-v2 and v3: a Batch in, an Encoded out. Layers with disentangled attention, and no position embeddings.

Relative positions are in logarithmic buckets, whose normalized embeddings all layers share. The first layer may have a
convolution of the embeddings beside it, as in DeBERTa-v2.

N tokens, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from bertworks.encoders import bert
from bertworks.encoders.bert import BertConfig
from bertworks.encoders.config import OPTIONAL, OPTIONAL_OR_ZERO, SUPPORTED_VALUES, check_activation
from bertworks.encoders.disentangled_attention import (
    POSITION_MODULES,
    DisentangledAttention,
    DisentangledLayout,
    log_buckets,
    relative_positions,
)
from bertworks.encoders.dropout import dropout
from bertworks.encoders.encoded import BatchLayout, OutputPositions
from bertworks.encoders.encoder import Encoder, init_truncated_normal, init_weights
from bertworks.encoders.family import Family
from bertworks.encoders.layers import ACTIVATIONS, Layer, LayerSeeds, offset_seed
from bertworks.encoders.memory import FLOAT_BYTES, ActivationBytes, transformer_activation_bytes
from bertworks.encoders.tensor_names import expand_weight_and_bias, layer_names, replace_prefix
from bertworks.errors import SettingsError, show_value
from bertworks.sampling.batch import Batch

# For position_buckets and max_relative_positions: none, and as many as max_position_embeddings.
_NO_LIMIT = {"optional": True, "minimum": -1}
# Added to the seed of the feed-forward output: for the dropout of the convolution.
_CONVOLUTION_SEED = 104_729


@dataclass(frozen=True, kw_only=True)
class DebertaV2Config(BertConfig):
    """The config.json of a DeBERTa-v2. The defaults are DeBERTa-v3-base.

    position_buckets         number of buckets of relative positions in each direction; -1: one for each position
    max_relative_positions   positions from which on all are in the last bucket; -1: max_position_embeddings
    pos_att_type             scores by relative position: c2p (of a query and the position of a key), p2c (the reverse)
    share_att_key            whether positions are projected as tokens are, or have projections of their own
    conv_kernel_size         of the convolution beside the first layer; 0: there is none
    """

    model_type: ClassVar[str] = "deberta-v2"
    supported_values: ClassVar[Mapping[str, Any]] = {**SUPPORTED_VALUES, "z_steps": 0}
    required_values: ClassVar[Mapping[str, Any]] = {
        "relative_attention": True,
        "position_biased_input": False,
        "norm_rel_ebd": "layer_norm",
    }

    vocab_size: int = 128_100
    type_vocab_size: int = field(default=0, metadata=OPTIONAL_OR_ZERO)
    layer_norm_eps: float = 1e-7
    position_buckets: int = field(default=256, metadata=_NO_LIMIT)
    max_relative_positions: int = field(default=-1, metadata=_NO_LIMIT)
    pooler_hidden_act: str = "gelu"
    pos_att_type: tuple[str, ...] = field(default=("p2c", "c2p"), metadata=OPTIONAL)
    share_att_key: bool = True
    conv_kernel_size: int = field(default=0, metadata=OPTIONAL_OR_ZERO)
    conv_groups: int = field(default=1, metadata=OPTIONAL)
    conv_act: str = "tanh"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_activation(self.conv_act, ACTIVATIONS)
        if not set(self.pos_att_type) <= {"p2c", "c2p"}:
            raise SettingsError(
                f"pos_att_type is {show_value(list(self.pos_att_type))}, but only p2c and c2p is supported; choose "
                f"another model"
            )
        if self.conv_kernel_size and (self.conv_kernel_size % 2 == 0 or self.hidden_size % self.conv_groups):
            raise SettingsError(
                f"conv_kernel_size is {self.conv_kernel_size} and conv_groups {self.conv_groups}, but only an odd size "
                f"is supported, and groups that divide the hidden size; correct config.json"
            )

    @classmethod
    def normalize(cls, config_dict: Mapping[str, Any]) -> Mapping[str, Any]:
        kinds: Any = config_dict.get("pos_att_type") or []
        kinds = [kind.strip() for kind in kinds.lower().split("|")] if isinstance(kinds, str) else kinds
        if isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds):
            kinds = sorted(set(kinds), reverse=True)  # their order has no meaning
        return {"share_att_key": False, **config_dict, "pos_att_type": kinds}

    def check_supported(self, config_dict: Mapping[str, Any]) -> None:
        super().check_supported(config_dict)
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

    def __init__(self, config: DebertaV2Config) -> None:
        attention = DisentangledAttention(
            config.hidden_size,
            config.num_attention_heads,
            config.attention_probs_dropout_prob,
            config.pos_att_type,
            config.share_att_key,
        )
        super().__init__(config.layer_config, attention)


class ConvolutionLayer(DebertaLayer):
    """The first layer of DeBERTa-v2, with a convolution of its input beside it."""

    def __init__(self, config: DebertaV2Config) -> None:
        super().__init__(config)
        size, kernel_size = config.hidden_size, config.conv_kernel_size
        self.convolution = nn.Conv1d(size, size, kernel_size, padding=kernel_size // 2, groups=config.conv_groups)
        self.convolution_norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.convolution_activation = ACTIVATIONS[config.conv_act]

    def forward(self, x: torch.Tensor, layout: BatchLayout, seeds: LayerSeeds | None = None) -> torch.Tensor:
        """Return (N, D): norm(layer(x) + activation(convolution(x)))."""
        return self.convolution_norm(super().forward(x, layout, seeds) + self._convolve(x, layout, seeds))

    def forward_at(
        self, x: torch.Tensor, layout: BatchLayout, seeds: LayerSeeds | None, outputs: OutputPositions
    ) -> torch.Tensor:
        """Return (M, D): the same for the tokens whose output is needed."""
        convolved = self._convolve(x, layout, seeds)[outputs.token_indices]
        return self.convolution_norm(super().forward_at(x, layout, seeds, outputs) + convolved)

    def _convolve(self, x: torch.Tensor, layout: BatchLayout, seeds: LayerSeeds | None) -> torch.Tensor:
        """Return (N, D): activation(convolution(x)) over the positions of each sequence, whose padding is 0."""
        assert self.convolution.bias is not None
        weight, bias = self.convolution.weight.to(x.dtype), self.convolution.bias.to(x.dtype)
        padding, groups = self.convolution.padding, self.convolution.groups
        convolved = []
        for group in layout.groups:
            values = x[group.tokens].view(group.num_sequences, group.length, -1)
            if group.mask is not None:  # a position that none attends to is padding
                values = values * (group.mask.amax(2)[:, 0] == 0).to(x.dtype)[..., None]
            outputs = F.conv1d(values.transpose(1, 2), weight, bias, padding=padding, groups=groups)
            convolved.append(outputs.transpose(1, 2).flatten(0, 1))
        seed = offset_seed(seeds[2], _CONVOLUTION_SEED) if seeds else None
        return self.convolution_activation(dropout(layout.join_groups(convolved), seed, self.dropout_prob))


class DebertaV2(Encoder):
    """The encoder of DeBERTa-v2 and v3. Its pooler is part of the heads for sequences in transformers."""

    config: DebertaV2Config
    supported_attention = ("bidirectional", "mask")
    has_graph = True

    def __init__(self, config: DebertaV2Config, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        self.pooler_activation = config.pooler_hidden_act
        self.has_graph = config == config.resized(pos_att_type=("p2c", "c2p"), share_att_key=True, conv_kernel_size=0)
        self.token_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        if config.type_vocab_size:
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.relative_embeddings = nn.Embedding(2 * config.relative_size, config.hidden_size)
        self.relative_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.layers = nn.ModuleList(
            ConvolutionLayer(config) if config.conv_kernel_size and not index else DebertaLayer(config)
            for index in range(config.num_hidden_layers)
        )
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        init_weights(self, config.initializer_range, generator)
        if isinstance(self.layers[0], ConvolutionLayer):
            convolution = self.layers[0].convolution
            init_truncated_normal(convolution.weight, config.initializer_range, generator)
            assert convolution.bias is not None
            nn.init.zeros_(convolution.bias)

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
_POSITION_NAMES = {"c2p": ("attention.self.pos_key_proj",), "p2c": ("attention.self.pos_query_proj",)}


def tensor_names(config: DebertaV2Config) -> dict[str, tuple[str, ...]]:
    """Return our name of each tensor -> transformers'."""
    names = replace_prefix(bert.NAMES, "bert.", "deberta.")
    del names["position_embeddings.weight"]
    if not config.type_vocab_size:
        del names["token_type_embeddings.weight"]
    names["relative_embeddings.weight"] = ("deberta.encoder.rel_embeddings.weight",)
    names |= expand_weight_and_bias({"relative_norm": ("deberta.encoder.LayerNorm",)})
    own = (
        {}
        if config.share_att_key
        else {f"attention.{POSITION_MODULES[kind]}": _POSITION_NAMES[kind] for kind in config.pos_att_type}
    )
    names |= layer_names("layers", "deberta.encoder.layer", config.num_hidden_layers, {**_LAYER_NAMES, **own})
    if config.conv_kernel_size:
        parts = {"convolution": "conv", "convolution_norm": "LayerNorm"}
        convolution = {f"layers.0.{ours}": (f"deberta.encoder.conv.{theirs}",) for ours, theirs in parts.items()}
        names |= expand_weight_and_bias(convolution)
    return names


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
    other_prefixes={  # of a masked LM whose config.json has "legacy": false
        "lm_predictions.lm_head.dense.": "cls.predictions.transform.dense.",
        "lm_predictions.lm_head.LayerNorm.": "cls.predictions.transform.LayerNorm.",
        "lm_predictions.lm_head.bias": "cls.predictions.bias",
    },
    heads={kind: bert.HEADS[kind] for kind in ("mlm", "sequence", "tokens", "choices", "spans")},
    prefix_overrides={kind: {"deberta.pooler.": "pooler."} for kind in ("sequence", "choices")},
)
