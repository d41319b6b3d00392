"""ModernBERT: a Batch in, an Encoded out. Pre-norm layers with rotary positions and gated networks, no biases.

One layer in `global_attn_every_n_layers`, beginning with the first, has global attention, the others attend to
local_attention // 2 positions to each side. All heads have the same transform, which is the pooler here: a norm of an
activated linear layer, applied to the pooled vector of a sequence or to each token.

Supported is what the released models compute: no biases but that of the masked LM's output, and rotary positions
without scaling. Both forms of config.json are read: with global_attn_every_n_layers, global_rope_theta and
local_rope_theta, which is written, and with layer_types and rope_parameters.

N tokens, B sequences, D hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import nn

from bertworks.encoders.config import (
    ABOVE_ZERO,
    OPTIONAL,
    SUPPORTED_VALUES,
    TRANSFORMER_PRESETS,
    EncoderConfig,
    check_activation,
    check_num_heads,
)
from bertworks.encoders.dropout import dropout
from bertworks.encoders.encoded import BatchLayout, Encoded, OutputPositions
from bertworks.encoders.encoder import Encoder, init_truncated_normal, init_weights
from bertworks.encoders.family import Family
from bertworks.encoders.kernels import GatedGeluFeedForward
from bertworks.encoders.layers import ACTIVATIONS, NO_SEEDS, DropoutSeeds, Layer, LayerConfig, LayerSeeds
from bertworks.encoders.linear import apply_linear, can_fuse, fused_linear, use_custom_kernels
from bertworks.encoders.memory import ActivationBytes, transformer_activation_bytes
from bertworks.encoders.rotary_attention import RotaryAttention, RotaryLayout, rotary_layout, rotation_angles
from bertworks.errors import SettingsError, show_value
from bertworks.sampling.batch import Batch

_POOLINGS = ("cls", "mean")
# transformers' names of the kinds of layers, each with the key of its theta.
_THETA_KEYS = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}


@dataclass(frozen=True, kw_only=True)
class ModernBertConfig(EncoderConfig):
    """The config.json of a ModernBERT. Base and large are the released sizes; the others are ours."""

    model_type: ClassVar[str] = "modernbert"
    target_ratio: ClassVar[float] = 0.3
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **TRANSFORMER_PRESETS,
        "base": {**TRANSFORMER_PRESETS["base"], "num_hidden_layers": 22},
        "large": {**TRANSFORMER_PRESETS["large"], "num_hidden_layers": 28, "intermediate_size": 2_624},
    }
    attribute_map: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "max_length": ("max_position_embeddings",),
        "hidden_act": ("hidden_activation",),
        "dropout_prob": ("embedding_dropout", "attention_dropout", "mlp_dropout", "classifier_dropout"),
    }
    supported_values: ClassVar[Mapping[str, Any]] = {
        **{key: value for key, value in SUPPORTED_VALUES.items() if key != "position_embedding_type"},
        **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), False),
        "decoder_bias": True,
        "rope_scaling": None,
    }

    vocab_size: int = 50_368
    hidden_size: int = 768
    num_hidden_layers: int = 22
    num_attention_heads: int = 12
    intermediate_size: int = 1_152
    max_position_embeddings: int = 8_192
    hidden_activation: str = "gelu"
    embedding_dropout: float = 0.0
    attention_dropout: float = 0.0
    mlp_dropout: float = 0.0
    classifier_dropout: float = 0.0
    classifier_pooling: str = "cls"
    classifier_activation: str = "gelu"
    norm_eps: float = 1e-5
    initializer_range: float = 0.02
    global_attn_every_n_layers: int = field(default=3, metadata=OPTIONAL)
    local_attention: int = field(default=128, metadata=OPTIONAL)
    global_rope_theta: float = field(default=160_000.0, metadata=ABOVE_ZERO)
    local_rope_theta: float = field(default=10_000.0, metadata=ABOVE_ZERO)

    def __post_init__(self) -> None:
        check_num_heads(self.hidden_size, self.num_attention_heads)
        for activation in (self.hidden_activation, self.classifier_activation):
            check_activation(activation, ACTIVATIONS)
        if self.head_size % 2:
            raise SettingsError(
                f"a hidden size of {self.hidden_size} with {self.num_attention_heads} attention heads gives heads of "
                f"{self.head_size} values, but rotary positions need an even number; choose other sizes"
            )
        if self.classifier_pooling not in _POOLINGS:
            raise SettingsError(
                f"classifier_pooling is {show_value(self.classifier_pooling)}; choose one of: {', '.join(_POOLINGS)}"
            )

    @property
    def max_length(self) -> int:
        return self.max_position_embeddings

    @property
    def hidden_dropout_prob(self) -> float:
        return self.classifier_dropout

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def reach(self) -> int:
        """How many positions to each side local attention covers."""
        return self.local_attention // 2

    @property
    def layer_config(self) -> LayerConfig:
        return LayerConfig(
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            intermediate_size=self.intermediate_size,
            hidden_dropout_prob=self.mlp_dropout,
            attention_probs_dropout_prob=self.attention_dropout,
            hidden_act=self.hidden_activation,
            layer_norm_eps=self.norm_eps,
        )

    @property
    def has_mlm_transform(self) -> bool:
        return False

    @property
    def feed_forward_size(self) -> int:
        return 3 * self.intermediate_size // 2  # three matrices instead of two

    def activation_bytes(self, max_length: int) -> ActivationBytes:
        """A gated feed-forward network saves twice its intermediate size."""
        config = replace(self.layer_config, intermediate_size=2 * self.intermediate_size)
        return transformer_activation_bytes(config, max_length, self.target_ratio)

    def resized(self, **changes: Any) -> Self:
        """Return the config with other sizes; without an intermediate_size, it is 3 / 2 of a new hidden_size."""
        if "hidden_size" in changes:
            changes.setdefault("intermediate_size", 3 * changes["hidden_size"] // 2)
        return super().resized(**changes)

    @classmethod
    def normalize(cls, config_dict: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a config.json with the keys that the models were released with; refuse what they cannot express."""
        values = dict(config_dict)
        layer_types = values.pop("layer_types", None)
        if layer_types is not None:
            values["global_attn_every_n_layers"] = _global_interval(layer_types)
        parameters = values.pop("rope_parameters", None)
        for kind, key in _THETA_KEYS.items():
            theta = _read_theta(parameters, kind)
            if theta is not None:
                values[key] = theta
        if values.get("local_rope_theta", 0) is None:  # that of global attention, in the first configs
            values["local_rope_theta"] = values.get("global_rope_theta", cls.global_rope_theta)
        return values


def _global_interval(layer_types: object) -> int:
    """Return the n of a list of kinds in which each n-th layer, beginning with the first, has global attention."""
    kinds = layer_types if isinstance(layer_types, list) else []
    interval = next((index for index, kind in enumerate(kinds) if index and kind == "full_attention"), len(kinds))
    expected = ["sliding_attention" if index % interval else "full_attention" for index in range(len(kinds))]
    if not kinds or kinds != expected:
        raise SettingsError(
            f"layer_types is {show_value(layer_types)}, but only full_attention in the first and then in each n-th "
            f"layer, and sliding_attention in the others, is supported; choose another model"
        )
    return interval


def _read_theta(parameters: object, kind: str) -> object:
    """Return the theta of a kind of layers in rope_parameters, None if they state none; refuse scaled positions."""
    parts = {} if parameters is None else parameters
    part = parts.get(kind) if isinstance(parts, dict) else None
    if part is None and isinstance(parts, dict) and parts.keys() <= _THETA_KEYS.keys():
        return None
    if not isinstance(part, dict) or part.keys() - {"rope_type", "rope_theta"} or part.get("rope_type") != "default":
        raise SettingsError(
            f"rope_parameters is {show_value(parameters)}, but only a rope_theta of the rope_type 'default' for each "
            f"of {' and '.join(_THETA_KEYS)} is supported; choose another model"
        )
    return part.get("rope_theta")


class ModernBertLayer(Layer):
    """A pre-norm layer: attention and a gated feed-forward network, each after a norm and with a residual connection.

    The first layer has no norm before its attention: the embeddings are normalized. The last has one after all.
    """

    def __init__(self, config: ModernBertConfig, index: int) -> None:
        nn.Module.__init__(self)  # not Layer's: other linears and norms
        hidden_size = config.hidden_size

        def norm(exists: bool) -> nn.Module:
            return nn.LayerNorm(hidden_size, eps=config.norm_eps, bias=False) if exists else nn.Identity()

        self.is_local = index % config.global_attn_every_n_layers > 0
        self.dropout_prob = config.mlp_dropout
        self.attention_norm = norm(index > 0)  # type: ignore[assignment]
        self.attention = RotaryAttention(hidden_size, config.num_attention_heads, config.attention_dropout)
        self.norm = norm(True)  # type: ignore[assignment]
        self.intermediate = nn.Linear(hidden_size, 2 * config.intermediate_size, bias=False)
        self.output = nn.Linear(config.intermediate_size, hidden_size, bias=False)
        self.final_norm = norm(index == config.num_hidden_layers - 1)
        self.activation = ACTIVATIONS[config.hidden_activation]

    def forward(self, x: torch.Tensor, layout: BatchLayout, seeds: LayerSeeds | None = None) -> torch.Tensor:
        """Return (N, D): x = x + attention(norm(x)), then x = x + feed_forward(norm(x))."""
        weights_seed, attention_seed, output_seed = seeds or NO_SEEDS
        context = self.attention(self.attention_norm(x), self._select_layout(layout), weights_seed)
        x = self.add_attention(x, context, attention_seed)
        return self.final_norm(self.add_feed_forward(x, output_seed))

    def forward_at(
        self, x: torch.Tensor, layout: BatchLayout, seeds: LayerSeeds | None, outputs: OutputPositions
    ) -> torch.Tensor:
        """Return (M, D): the same for the tokens whose output is needed."""
        weights_seed, attention_seed, output_seed = seeds or NO_SEEDS
        layout = self._select_layout(layout)
        context = self.attention.forward_at(self.attention_norm(x), layout, weights_seed, outputs)
        x = self.add_attention(x[outputs.token_indices], context, attention_seed)
        return self.final_norm(self.add_feed_forward(x, output_seed))

    def attention_weights(self, x: torch.Tensor, layout: BatchLayout) -> torch.Tensor:
        """Return the attention weights (C, H, T, T) of the inputs (N, D) of this layer, which are one group."""
        return self.attention.attention_weights(self.attention_norm(x), self._select_layout(layout))

    def add_attention(self, x: torch.Tensor, context: torch.Tensor, seed: torch.Tensor | None) -> torch.Tensor:
        """Return x + attention(norm(x)), given the context vectors of the attention."""
        if seed is None and can_fuse(x):
            return fused_linear(context, self.attention.out, x)
        return x + dropout(apply_linear(context, self.attention.out), seed, self.attention.dropout_prob)

    def add_feed_forward(self, x: torch.Tensor, seed: torch.Tensor | None) -> torch.Tensor:
        """Return x + feed_forward(norm(x)); dropout is that of the intermediate values."""
        normalized, seed = self.norm(x), seed if self.dropout_prob else None
        if seed is None and can_fuse(x):
            return fused_linear(self._activate_intermediate(normalized), self.output, x)
        is_gelu = self.activation is ACTIVATIONS["gelu"]
        if seed is None and is_gelu and torch.is_grad_enabled() and use_custom_kernels():
            return x + GatedGeluFeedForward.apply(normalized, self.intermediate.weight, self.output.weight)  # type: ignore[no-untyped-call]
        intermediate = dropout(self._activate_intermediate(normalized), seed, self.dropout_prob)
        return x + apply_linear(intermediate, self.output)

    def _activate_intermediate(self, x: torch.Tensor) -> torch.Tensor:
        """Return activation(a) * b (N, I), where a and b are the halves of intermediate(x)."""
        inputs, gates = apply_linear(x, self.intermediate).chunk(2, -1)
        return self.activation(inputs) * gates

    def _select_layout(self, layout: BatchLayout) -> BatchLayout:
        assert isinstance(layout, RotaryLayout)
        return layout.local or layout if self.is_local else layout


class ModernBert(Encoder):
    """The encoder of ModernBERT. Its pooler is the transform of all heads in transformers."""

    config: ModernBertConfig
    supported_attention = ("bidirectional", "mask")
    has_graph = True

    def __init__(self, config: ModernBertConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        self.pooler_activation = config.classifier_activation
        self.pools_mean = config.classifier_pooling == "mean"
        self.token_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=False)
        self.layers = nn.ModuleList(ModernBertLayer(config, index) for index in range(config.num_hidden_layers))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.pooler_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=False)
        init_weights(self, config.initializer_range, generator)
        # What is added to the residual stream is smaller, so that its variance does not grow with the depth.
        std = config.initializer_range / math.sqrt(2.0 * config.num_hidden_layers)
        for name, module in self.named_modules():
            if name.endswith((".out", ".output")) or name == "pooler":
                init_truncated_normal(module.weight, std, generator)

    @property
    def embedding_dropout_prob(self) -> float:
        return self.config.embedding_dropout

    def layer_depths(self) -> dict[str, int]:
        """Return the depth of each parameter; the norm of the pooler has that of the pooler."""
        return {**super().layer_depths(), "pooler_norm.weight": self.config.num_hidden_layers + 1}

    def embed(self, batch: Batch, layout: BatchLayout, sparse_grad: bool = False) -> torch.Tensor:
        """Return (N, D): norm(token embedding); positions enter in the attention."""
        return self.norm(self.lookup_embeddings(batch, layout, sparse_grad)[0])

    def create_layout(self, batch: Batch) -> RotaryLayout:
        """Return the layout of a batch, with the rotations of its tokens and that of local attention."""
        config = self.config
        thetas = (config.global_rope_theta, config.local_rope_theta)
        return rotary_layout(super().create_layout(batch), config.head_size, thetas, config.reach)

    def forward_layers(
        self,
        hidden_states: torch.Tensor,
        layout: BatchLayout,
        seeds: DropoutSeeds | None = None,
        positions: torch.Tensor | None = None,
    ) -> Encoded:
        """Run the layers on embedded tokens (N, D).

        The mean of all tokens, if that is the pooling, is not computed where only some positions are requested.
        """
        if not self.pools_mean:
            return super().forward_layers(hidden_states, layout, seeds, positions)
        if positions is not None and len(positions):
            return replace(super().forward_layers(hidden_states, layout, seeds, positions), pooled=None)
        encoded = super().forward_layers(hidden_states, layout, seeds)
        pooled = self.pool(encoded.to_padded().sum(1) / layout.lengths[:, None])
        if positions is None:
            return replace(encoded, pooled=pooled)
        no_states = encoded.last_hidden_state[:0]
        return replace(
            encoded, hidden_states=(*encoded.hidden_states[:-1], no_states), pooled=pooled, positions=positions
        )

    def pool(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return norm(activation(pooler(vectors))), of pooled vectors (B, D) or of tokens."""
        return self.pooler_norm(super().pool(vectors))

    def transform_for_head(self, encoded: Encoded) -> Encoded:
        """Return the output with the transform of all heads applied to the last hidden state."""
        return replace(encoded, hidden_states=(*encoded.hidden_states[:-1], self.pool(encoded.last_hidden_state)))

    def graph_tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors of its ONNX graph; cosines and sines are for sequences up to the maximal length."""
        config, tensors = self.config, super().graph_tensors()
        for kind, theta in (("global", config.global_rope_theta), ("local", config.local_rope_theta)):
            angles = rotation_angles(config.max_length, config.head_size, theta, self.device)
            tensors |= {f"{kind}_cosines": angles.cos(), f"{kind}_sines": angles.sin()}
        return tensors


_LAYER_NAMES = {
    "attention_norm": "attn_norm",
    "attention.query_key_value": "attn.Wqkv",
    "attention.out": "attn.Wo",
    "norm": "mlp_norm",
    "intermediate": "mlp.Wi",
    "output": "mlp.Wo",
}


def tensor_names(config: ModernBertConfig) -> dict[str, tuple[str, ...]]:
    """Return our name of each tensor -> transformers'."""
    modules = {
        "token_embeddings": "model.embeddings.tok_embeddings",
        "norm": "model.embeddings.norm",
        **{
            f"layers.{index}.{ours}": f"model.layers.{index}.{theirs}"
            for index in range(config.num_hidden_layers)
            for ours, theirs in _LAYER_NAMES.items()
            if index or ours != "attention_norm"
        },
        f"layers.{config.num_hidden_layers - 1}.final_norm": "model.final_norm",
        "pooler": "head.dense",
        "pooler_norm": "head.norm",
    }
    return {f"{ours}.weight": (f"{theirs}.weight",) for ours, theirs in modules.items()}


_SCORE_NAMES: dict[str, tuple[str, ...]] = {"score.weight": ("classifier.weight",), "score.bias": ("classifier.bias",)}

FAMILY = Family(
    config_class=ModernBertConfig,
    build=ModernBert,
    tensor_names=tensor_names,
    class_prefix="ModernBert",
    prefix="model.",
    optional_prefixes=("head.",),
    copies={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    heads={
        "mlm": {"bias": ("decoder.bias",)},
        **dict.fromkeys(("sequence", "tokens", "choices", "spans"), _SCORE_NAMES),
    },
    has_token_types=False,
    special_ids={
        "pad_token_id": "pad",
        "cls_token_id": "cls",
        "sep_token_id": "sep",
        "bos_token_id": "cls",
        "eos_token_id": "sep",
    },
)
