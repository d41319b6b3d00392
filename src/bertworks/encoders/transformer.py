"""The Transformer: a Batch in, an Encoded out; of a batch with a source, what its decoder makes of the rows.

Without a source its encoder reads rows as any other does. With one, rows are read to the left, and besides their own
pieces each reads what the encoder made of its source. Its counterpart in transformers is Marian. N pieces, D width.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from bertworks.encoders import bert
from bertworks.encoders.cross_attention import DecoderLayer
from bertworks.encoders.encoded import BatchLayout, CrossAttentionCache, Encoded, EncoderState, create_attention_mask
from bertworks.encoders.layers import DropoutSeeds, Layer
from bertworks.encoders.stack import BertConfig, Encoder, initialise
from bertworks.encoders.tensor_names import expand_weight_and_bias
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch


@dataclass(frozen=True, slots=True)
class TransformerConfig(BertConfig):
    """What a Transformer is made of. Positions are waves and not learned; their number is the longest row's.

    num_decoder_layers   0: as many as the encoder has
    scales_pieces        whether embeddings are multiplied by the root of the width, as in the paper
    """

    num_decoder_layers: int = 0
    scale_embedding: bool = True

    @property
    def decoder_config(self) -> TransformerConfig:
        """The sizes of the decoder alone."""
        return replace(self, num_hidden_layers=self.num_decoder_layers or self.num_hidden_layers, num_decoder_layers=0)


class Decoder(Encoder):
    """The layers over rows that have a source. It embeds nothing: the table of pieces is the encoder's."""

    supported_attention = ("causal",)

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config.decoder_config)
        self.layers = nn.ModuleList(
            DecoderLayer(config.layer_config, number) for number in range(self.config.num_hidden_layers)
        )

    @property
    def decoder_layers(self) -> Sequence[DecoderLayer]:
        """Its layers."""
        return list(self.layers)  # type: ignore[arg-type]

    def pooled_positions(self, layout: BatchLayout) -> torch.Tensor:
        """Return (B,): the last piece of each row, which has read all others."""
        return layout.starts + layout.lengths - 1

    def pool(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return them as they are."""
        return vectors


@dataclass(frozen=True, slots=True)
class DecoderState:
    """What rows of the decoder leave for those that go on behind them: what was read, and their source. An empty one
    begins, with the source that the batch has."""

    cache: EncoderState = field(default_factory=EncoderState)
    source_cache: CrossAttentionCache | None = None


class Transformer(Encoder):
    """An encoder and a decoder that share one table of pieces; no segments, no norm before the first layer, no pooler.

    The first piece sums a row up, as it is.
    """

    config: TransformerConfig

    def __init__(self, config: TransformerConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        self.token_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config.layer_config) for _ in range(config.num_hidden_layers))
        self.decoder = Decoder(config)
        initialise(self, config.initializer_range, generator)

    def forward(
        self,
        batch: Batch,
        state: object | None = None,
        seeds: DropoutSeeds | None = None,
        positions: torch.Tensor | None = None,
    ) -> Encoded:
        """Return all layers: of the encoder, or of the decoder where the batch has a source.

        With a `Going` as state the decoder's rows go on behind others, and a new one leaves.
        """
        if state is None and batch.source is None:
            return super().forward(batch, None, seeds, positions)
        self.decoder.activation_checkpointing = self.activation_checkpointing
        if state is None:
            layout = replace(self.decoder.create_layout(batch), source_cache=self._encode_source(batch.source, seeds))
            later = (
                None if seeds is None else DropoutSeeds(seeds.base + 1)
            )  # so that it drops other values than the encoder
            return self.decoder.forward_layers(self.embed(batch, layout), layout, later, positions)
        assert isinstance(state, DecoderState), "the state of another encoder"
        source = state.source_cache or self._encode_source(batch.source, None)
        layout = replace(self.decoder.create_layout_with_cache(batch, state.cache), source_cache=source)
        found = self.decoder.forward_layers_with_cache(self.embed(batch, layout), layout, state.cache)
        assert isinstance(found.state, EncoderState)
        return replace(found, state=DecoderState(found.state, source))

    def _encode_source(self, batch: Batch | None, seeds: DropoutSeeds | None) -> CrossAttentionCache:
        """Return what the encoder makes of source rows."""
        assert batch is not None, "a decoder has to be given a source"
        values = super().forward(batch, None, seeds).to_padded()  # (C, S, D)
        return CrossAttentionCache(
            tuple(layer.cross_attention.compute_cache(values) for layer in self.decoder.decoder_layers),
            create_attention_mask(batch, "bidirectional"),
        )

    def embed(self, batch: Batch, layout: BatchLayout) -> torch.Tensor:
        """Return (N, D): piece and position."""
        pieces, places, _ = self.lookup_embeddings(batch, layout)
        return self._scale_embeddings(pieces) + self._position_encodings(places, pieces)

    def embedding_components(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what is summed for the pieces of one row (T,), each (T, D), by what it tells."""
        pieces = self._scale_embeddings(self.token_embeddings(input_ids))
        return {
            "token": pieces,
            "position": self._position_encodings(torch.arange(len(input_ids), device=input_ids.device), pieces),
        }

    def pool(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return them as they are."""
        return vectors

    def set_dropout(self, dropout_prob: float) -> None:
        """Drop at another rate than the sizes say, everywhere."""
        super().set_dropout(dropout_prob)
        self.decoder.set_dropout(dropout_prob)

    def _scale_embeddings(self, embeddings: torch.Tensor) -> torch.Tensor:
        return embeddings * math.sqrt(self.config.hidden_size) if self.config.scale_embedding else embeddings

    def _position_encodings(self, positions: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return sinusoidal_positions(self.config.max_position_embeddings, self.config.hidden_size).to(like)[positions]


@functools.lru_cache(maxsize=8)
def sinusoidal_positions(num_positions: int, hidden_size: int) -> torch.Tensor:
    """Return (positions, D): the paper's sines and cosines, all sines first as transformers has them."""
    with torch.device("cpu"), torch.inference_mode(False):
        rates = 10_000.0 ** -(torch.arange(0, hidden_size, 2, dtype=torch.float64) / hidden_size)
        angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * rates
        return torch.cat([angles.sin(), angles.cos()], 1)[:, :hidden_size].float()


_FAMILY_CONFIG: dict[str, Any] = {
    "type_vocab_size": 1,
    "hidden_act": "relu",
    "layer_norm_eps": 1e-5,
    "model_type": "marian",
}
CONFIG_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
    "intermediate_size": "encoder_ffn_dim",
    "max_position_embeddings": "max_position_embeddings",
    "hidden_act": "activation_function",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "initializer_range": "init_std",
}
# What a decoder must have in common with its encoder, and settings that must be as they are by default.
_TIED_KEYS = {"decoder_attention_heads": "encoder_attention_heads", "decoder_ffn_dim": "encoder_ffn_dim"}
_SUPPORTED_VALUES = {
    "activation_dropout": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
}
_ACTIVATIONS = {"swish": "silu"}

# A translation begins with the first special piece, and the one that ends a text ends it.
SPECIAL_IDS = {
    "pad_token_id": "pad",
    "bos_token_id": "first",
    "eos_token_id": "separator",
    "forced_eos_token_id": "separator",
    "decoder_start_token_id": "first",
}
HEADS = {"translation": {"bias": ("final_logits_bias",)}}
COPIES = {
    "model.encoder.embed_tokens.weight": "model.shared.weight",
    "model.decoder.embed_tokens.weight": "model.shared.weight",
    "lm_head.weight": "model.shared.weight",
}
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


def config_from_preset(name: str, vocab_size: int) -> TransformerConfig:
    """Return BERT's sizes by name, for encoder and decoder; weights are drawn as widely as the paper's were."""
    sizes = TransformerConfig.from_preset(name, vocab_size)
    return replace(sizes, initializer_range=sizes.hidden_size**-0.5, **_FAMILY_CONFIG)


def config_from_dict(config_dict: Mapping[str, Any]) -> TransformerConfig:
    """Return the sizes that a config.json states; refuse what cannot be obeyed."""
    bert.check_supported(config_dict, _SUPPORTED_VALUES)
    found = {**_FAMILY_CONFIG, **bert.read_config_fields(config_dict, CONFIG_KEYS)}
    found["hidden_act"] = _ACTIVATIONS.get(found["hidden_act"], found["hidden_act"])
    for key, like in _TIED_KEYS.items():
        if config_dict.get(key, config_dict[like]) != config_dict[like]:
            raise SettingsError(
                f"{key} is {config_dict[key]} and {like} {config_dict[like]}; only a model with both alike is read"
            )
    layers = config_dict.get("decoder_layers", found["num_hidden_layers"])
    if not isinstance(layers, int) or layers < 1:
        raise SettingsError(f"decoder_layers should be a whole number above 0, but is {layers!r}")
    own = 0 if layers == found["num_hidden_layers"] else layers
    return TransformerConfig(
        **found, num_decoder_layers=own, scale_embedding=bool(config_dict.get("scale_embedding", False))
    )  # fmt: skip


def config_to_dict(config: TransformerConfig, architectures: Sequence[str]) -> dict[str, Any]:
    """Return the config.json of these sizes; `architectures` are transformers' classes."""
    told = {key: getattr(config, name) for name, key in CONFIG_KEYS.items()}
    like = {key: told[of] for key, of in _TIED_KEYS.items()}
    own = {"decoder_layers": config.decoder_config.num_hidden_layers, "scale_embedding": config.scale_embedding}
    return {"model_type": "marian", "architectures": list(architectures), **told, **like, **own}


def tensor_names(config: TransformerConfig) -> dict[str, tuple[str, ...]]:
    """Return the whole table: our name of each tensor -> Hugging Face's."""
    names: dict[str, tuple[str, ...]] = {"token_embeddings.weight": ("model.shared.weight",)}
    encoder, decoder = config.num_hidden_layers, config.decoder_config.num_hidden_layers
    stacks = (
        ("", "encoder", encoder, _LAYER_NAMES),
        ("decoder.", "decoder", decoder, {**_LAYER_NAMES, **_CROSS_ATTENTION_NAMES}),
    )
    for here, there, num_layers, table in stacks:
        for number in range(num_layers):
            path = f"model.{there}.layers.{number}."
            parts = {f"{here}layers.{number}.{our}": tuple(path + one for one in own) for our, own in table.items()}
            names |= expand_weight_and_bias(parts)
    return names
