"""The Transformer: a Batch in, an Encoded out; the decoder's, if the batch has a source.

Without a source the encoder encodes the sequences. With one, the decoder does, with causal attention and with
cross-attention to the encoded source. Its counterpart in transformers is Marian.

B sequences, T positions, N tokens, D hidden size, C sources of S positions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from bertworks.encoders.cross_attention import DecoderLayer
from bertworks.encoders.encoded import BatchLayout, CrossAttentionCache, Encoded, EncoderState, create_attention_mask
from bertworks.encoders.encoder import Encoder, init_weights
from bertworks.encoders.family import Family
from bertworks.encoders.layers import ACTIVATIONS, DropoutSeeds, Layer, LayerConfig
from bertworks.encoders.tensor_names import layer_names
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch

# Marian's layer norms, whose epsilon is no key of its config.json.
_LAYER_NORM_EPS = 1e-5
# The activation functions that transformers has two names for.
_ALIASES = {"swish": "silu"}


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(EncoderConfig):
    """Marian's config.json. The presets have the paper's activation, scale of embeddings and initialization."""

    model_type: ClassVar[str] = "marian"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        name: {
            **preset,
            "activation_function": "relu",
            "init_std": preset["hidden_size"] ** -0.5,
            "scale_embedding": True,
        }
        for name, preset in TRANSFORMER_PRESETS.items()
    }
    attribute_map: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "hidden_size": ("d_model",),
        "num_hidden_layers": ("encoder_layers", "decoder_layers"),
        "num_attention_heads": ("encoder_attention_heads", "decoder_attention_heads"),
        "intermediate_size": ("encoder_ffn_dim", "decoder_ffn_dim"),
        "max_length": ("max_position_embeddings",),
        "hidden_act": ("activation_function",),
        "dropout_prob": ("dropout", "attention_dropout"),
    }
    supported_values: ClassVar[Mapping[str, Any]] = {
        **SUPPORTED_VALUES,
        "activation_dropout": 0.0,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
    }

    vocab_size: int = 58_101
    d_model: int = 1_024
    encoder_layers: int = 12
    decoder_layers: int = 12
    encoder_attention_heads: int = 16
    decoder_attention_heads: int = 16
    encoder_ffn_dim: int = 4_096
    decoder_ffn_dim: int = 4_096
    max_position_embeddings: int = 512
    activation_function: str = "gelu"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    init_std: float = 0.02
    scale_embedding: bool = False

    def __post_init__(self) -> None:
        check_num_heads(self.d_model, self.encoder_attention_heads)
        check_activation(_ALIASES.get(self.activation_function, self.activation_function), ACTIVATIONS)
        for key in ("attention_heads", "ffn_dim"):
            encoder, decoder = getattr(self, f"encoder_{key}"), getattr(self, f"decoder_{key}")
            if encoder != decoder:
                raise SettingsError(
                    f"decoder_{key} is {decoder} and encoder_{key} {encoder}; only a model with equal ones is supported"
                )

    @property
    def hidden_size(self) -> int:
        return self.d_model

    @property
    def num_hidden_layers(self) -> int:
        return self.encoder_layers

    @property
    def max_length(self) -> int:
        return self.max_position_embeddings

    @property
    def hidden_dropout_prob(self) -> float:
        return self.dropout

    @property
    def initializer_range(self) -> float:
        return self.init_std

    @property
    def layer_config(self) -> LayerConfig:
        return LayerConfig(
            hidden_size=self.d_model,
            num_attention_heads=self.encoder_attention_heads,
            intermediate_size=self.encoder_ffn_dim,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.attention_dropout,
            hidden_act=_ALIASES.get(self.activation_function, self.activation_function),
            layer_norm_eps=_LAYER_NORM_EPS,
        )


class Decoder(Encoder):
    """The layers of the decoder. The token embeddings are the encoder's."""

    config: TransformerConfig
    supported_attention = ("causal",)

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.layers = nn.ModuleList(DecoderLayer(config.layer_config, index) for index in range(config.decoder_layers))

    @property
    def decoder_layers(self) -> Sequence[DecoderLayer]:
        return list(self.layers)  # type: ignore[arg-type]

    def pooled_positions(self, layout: BatchLayout) -> torch.Tensor:
        """Return (B,): the index of the last token of each sequence."""
        return layout.starts + layout.lengths - 1

    def pool(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return the vectors unchanged: there is no pooler."""
        return vectors


@dataclass(frozen=True, slots=True)
class DecoderState:
    """The state of a decoder: its key/value cache and the encoded source. An empty one takes the batch's source."""

    cache: EncoderState = field(default_factory=EncoderState)
    source_cache: CrossAttentionCache | None = None


class Transformer(Encoder):
    """An encoder and a decoder with shared token embeddings; no token types, no norm after the embeddings, no pooler.

    The pooled output is that of the first token.
    """

    config: TransformerConfig

    def __init__(self, config: TransformerConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        self.token_embeddings = nn.Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(Layer(config.layer_config) for _ in range(config.encoder_layers))
        self.decoder = Decoder(config)
        init_weights(self, config.init_std, generator)

    def forward(
        self,
        batch: Batch,
        state: object | None = None,
        seeds: DropoutSeeds | None = None,
        positions: torch.Tensor | None = None,
        sparse_grad: bool = False,
    ) -> Encoded:
        """Return all hidden states: the encoder's, or the decoder's if the batch has a source.

        With a `DecoderState` the decoder's sequences continue earlier ones, and a new state is returned.
        """
        if state is None and batch.source is None:
            return super().forward(batch, None, seeds, positions, sparse_grad)
        self.decoder.activation_checkpointing = self.activation_checkpointing
        if state is None:
            layout = replace(self.decoder.create_layout(batch), source_cache=self._encode_source(batch.source, seeds))
            # Other seeds than the encoder's, so that other values are dropped.
            decoder_seeds = None if seeds is None else DropoutSeeds(seeds.base + 1)
            embeddings = self.embed(batch, layout, sparse_grad)
            return self.decoder.forward_layers(embeddings, layout, decoder_seeds, positions)
        assert isinstance(state, DecoderState), "the state of another encoder"
        source_cache = state.source_cache or self._encode_source(batch.source, None)
        layout = replace(self.decoder.create_layout_with_cache(batch, state.cache), source_cache=source_cache)
        encoded = self.decoder.forward_layers_with_cache(self.embed(batch, layout), layout, state.cache)
        assert isinstance(encoded.state, EncoderState)
        return replace(encoded, state=DecoderState(encoded.state, source_cache))

    def _encode_source(self, batch: Batch | None, seeds: DropoutSeeds | None) -> CrossAttentionCache:
        """Encode the source and return the keys and values of each decoder layer."""
        assert batch is not None, "a decoder needs a source"
        source_states = super().forward(batch, None, seeds).to_padded()  # (C, S, D)
        return CrossAttentionCache(
            tuple(layer.cross_attention.compute_cache(source_states) for layer in self.decoder.decoder_layers),
            create_attention_mask(batch, "bidirectional"),
        )

    def embed(self, batch: Batch, layout: BatchLayout, sparse_grad: bool = False) -> torch.Tensor:
        """Return (N, D): scaled token embedding + sinusoidal position."""
        embeddings, positions, _ = self.lookup_embeddings(batch, layout, sparse_grad)
        return self._scale_embeddings(embeddings) + self._position_encodings(positions, embeddings)

    def embedding_components(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the embeddings that are summed for one sequence (T,), each (T, D), by name."""
        embeddings = self._scale_embeddings(self.token_embeddings(input_ids))
        positions = torch.arange(len(input_ids), device=input_ids.device)
        return {"token": embeddings, "position": self._position_encodings(positions, embeddings)}

    def pool(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return the vectors unchanged: there is no pooler."""
        return vectors

    def set_dropout(self, dropout_prob: float) -> None:
        """Set the dropout probability of all layers and of both configs."""
        super().set_dropout(dropout_prob)
        self.decoder.set_dropout(dropout_prob)

    def _scale_embeddings(self, embeddings: torch.Tensor) -> torch.Tensor:
        return embeddings * math.sqrt(self.config.d_model) if self.config.scale_embedding else embeddings

    def _position_encodings(self, positions: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return sinusoidal_positions(self.config.max_position_embeddings, self.config.d_model).to(like)[positions]


@functools.lru_cache(maxsize=8)
def sinusoidal_positions(num_positions: int, hidden_size: int) -> torch.Tensor:
    """Return (num_positions, D): the paper's position encodings, all sines first as in transformers."""
    with torch.device("cpu"), torch.inference_mode(False):
        frequencies = 10_000.0 ** -(torch.arange(0, hidden_size, 2, dtype=torch.float64) / hidden_size)
        angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * frequencies
        return torch.cat([angles.sin(), angles.cos()], 1)[:, :hidden_size].float()


_LAYER_NAMES = {
    "attention.query_key_value": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": ("self_attn.out_proj",),
    "attention_norm": ("self_attn_layer_norm",),
    "intermediate": ("fc1",),
    "output": ("fc2",),
    "norm": ("final_layer_norm",),
}
_CROSS_ATTENTION_NAMES = {
    "cross_attention.query_key_value": ("encoder_attn.q_proj", "encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross_attention.out": ("encoder_attn.out_proj",),
    "cross_attention_norm": ("encoder_attn_layer_norm",),
}


def tensor_names(config: TransformerConfig) -> dict[str, tuple[str, ...]]:
    """Return our name of each tensor -> transformers'."""
    names: dict[str, tuple[str, ...]] = {"token_embeddings.weight": ("model.shared.weight",)}
    stacks = (
        ("", "encoder", config.encoder_layers, _LAYER_NAMES),
        ("decoder.", "decoder", config.decoder_layers, {**_LAYER_NAMES, **_CROSS_ATTENTION_NAMES}),
    )
    for prefix, stack, num_layers, table in stacks:
        names |= layer_names(f"{prefix}layers", f"model.{stack}.layers", num_layers, table)
    return names


FAMILY = Family(
    config_class=TransformerConfig,
    build=Transformer,
    tensor_names=tensor_names,
    class_prefix="Marian",
    prefix="model.",
    copies={
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
        "lm_head.weight": "model.shared.weight",
    },
    heads={"translation": {"bias": ("final_logits_bias",)}},
    has_token_types=False,
    # A translation starts with the first special token and ends with the separator.
    special_ids={
        "pad_token_id": "pad",
        "bos_token_id": "cls",
        "eos_token_id": "sep",
        "forced_eos_token_id": "sep",
        "decoder_start_token_id": "cls",
    },
)
