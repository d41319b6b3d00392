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
from bertworks.encoders.cross_attention import SourceLayer
from bertworks.encoders.encoded import Carried, Encoded, Layout, Source, reading_mask
from bertworks.encoders.layers import Layer, Seeds
from bertworks.encoders.stack import BertSizes, Stack, initialise
from bertworks.encoders.tensor_names import with_ends
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch


@dataclass(frozen=True, slots=True)
class TransformerSizes(BertSizes):
    """What a Transformer is made of. Positions are waves and not learned; their number is the longest row's.

    num_decoder_layers   0: as many as the encoder has
    scales_pieces        whether embeddings are multiplied by the root of the width, as in the paper
    """

    num_decoder_layers: int = 0
    scales_pieces: bool = True

    @property
    def decoder(self) -> TransformerSizes:
        """The sizes of the decoder alone."""
        return replace(self, num_layers=self.num_decoder_layers or self.num_layers, num_decoder_layers=0)


class Decoder(Stack):
    """The layers over rows that have a source. It embeds nothing: the table of pieces is the encoder's."""

    reads = ("left",)

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__(sizes.decoder)
        self.layers = nn.ModuleList(SourceLayer(sizes.layer, number) for number in range(self.sizes.num_layers))

    @property
    def sourced(self) -> Sequence[SourceLayer]:
        """Its layers."""
        return list(self.layers)  # type: ignore[arg-type]

    def summaries(self, layout: Layout) -> torch.Tensor:
        """Return (B,): the last piece of each row, which has read all others."""
        return layout.starts + layout.lengths - 1

    def summed(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return them as they are."""
        return vectors


@dataclass(frozen=True, slots=True)
class Going:
    """What rows of the decoder leave for those that go on behind them: what was read, and their source. An empty one
    begins, with the source that the batch has."""

    carried: Carried = field(default_factory=Carried)
    source: Source | None = None


class Transformer(Stack):
    """An encoder and a decoder that share one table of pieces; no segments, no norm before the first layer, no pooler.

    The first piece sums a row up, as it is.
    """

    sizes: TransformerSizes

    def __init__(self, sizes: TransformerSizes, generator: torch.Generator | None = None) -> None:
        super().__init__(sizes)
        self.pieces = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes.layer) for _ in range(sizes.num_layers))
        self.decoder = Decoder(sizes)
        initialise(self, sizes.spread, generator)

    def forward(
        self,
        batch: Batch,
        state: object | None = None,
        seeds: Seeds | None = None,
        places: torch.Tensor | None = None,
    ) -> Encoded:
        """Return all layers: of the encoder, or of the decoder where the batch has a source.

        With a `Going` as state the decoder's rows go on behind others, and a new one leaves.
        """
        if state is None and batch.source is None:
            return super().forward(batch, None, seeds, places)
        self.decoder.recomputes = self.recomputes
        if state is None:
            layout = replace(self.decoder.laid(batch), source=self._read(batch.source, seeds))
            later = None if seeds is None else Seeds(seeds.base + 1)  # so that it drops other values than the encoder
            return self.decoder.through(self.embed(batch, layout), layout, later, places)
        assert isinstance(state, Going), "the state of another encoder"
        source = state.source or self._read(batch.source, None)
        layout = replace(self.decoder.laid_onward(batch, state.carried), source=source)
        found = self.decoder.through_onward(self.embed(batch, layout), layout, state.carried)
        assert isinstance(found.state, Carried)
        return replace(found, state=Going(found.state, source))

    def _read(self, batch: Batch | None, seeds: Seeds | None) -> Source:
        """Return what the encoder makes of source rows."""
        assert batch is not None, "a decoder has to be given a source"
        values = super().forward(batch, None, seeds).padded()  # (C, S, D)
        return Source(tuple(layer.source.kept(values) for layer in self.decoder.sourced), reading_mask(batch, "both"))

    def embed(self, batch: Batch, layout: Layout) -> torch.Tensor:
        """Return (N, D): piece and position."""
        pieces, places, _ = self.looked_up(batch, layout)
        return self._scaled(pieces) + self._waves(places, pieces)

    def tables(self, ids: torch.Tensor, segments: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what is summed for the pieces of one row (T,), each (T, D), by what it tells."""
        pieces = self._scaled(self.pieces(ids))
        return {"piece": pieces, "position": self._waves(torch.arange(len(ids), device=ids.device), pieces)}

    def summed(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return them as they are."""
        return vectors

    def set_dropout(self, rate: float) -> None:
        """Drop at another rate than the sizes say, everywhere."""
        super().set_dropout(rate)
        self.decoder.set_dropout(rate)

    def _scaled(self, pieces: torch.Tensor) -> torch.Tensor:
        return pieces * math.sqrt(self.sizes.width) if self.sizes.scales_pieces else pieces

    def _waves(self, places: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return waves(self.sizes.positions, self.sizes.width).to(like)[places]


@functools.lru_cache(maxsize=8)
def waves(num_positions: int, width: int) -> torch.Tensor:
    """Return (positions, D): the paper's sines and cosines, all sines first as transformers has them."""
    with torch.device("cpu"), torch.inference_mode(False):
        rates = 10_000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * rates
        return torch.cat([angles.sin(), angles.cos()], 1)[:, :width].float()


_OWN: dict[str, Any] = {"segments": 1, "activation": "relu", "norm_eps": 1e-5, "family": "marian"}
CONFIG_KEYS = {
    "vocabulary": "vocab_size",
    "width": "d_model",
    "num_layers": "encoder_layers",
    "num_heads": "encoder_attention_heads",
    "inner": "encoder_ffn_dim",
    "positions": "max_position_embeddings",
    "activation": "activation_function",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "spread": "init_std",
}
# What a decoder must have in common with its encoder, and settings that must be as they are by default.
_SHARED = {"decoder_attention_heads": "encoder_attention_heads", "decoder_ffn_dim": "encoder_ffn_dim"}
_ONLY = {
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
HEADS = {"translations": {"bias": ("final_logits_bias",)}}
COPIES = {
    "model.encoder.embed_tokens.weight": "model.shared.weight",
    "model.decoder.embed_tokens.weight": "model.shared.weight",
    "lm_head.weight": "model.shared.weight",
}
_LAYER_NAMES = {
    "attention.query_key_value": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": ("self_attn.out_proj",),
    "attention_norm": ("self_attn_layer_norm",),
    "inner": ("fc1",),
    "outer": ("fc2",),
    "norm": ("final_layer_norm",),
}
_SOURCE_NAMES = {
    "source.query_key_value": ("encoder_attn.q_proj", "encoder_attn.k_proj", "encoder_attn.v_proj"),
    "source.out": ("encoder_attn.out_proj",),
    "source_norm": ("encoder_attn_layer_norm",),
}


def released(name: str, vocabulary: int) -> TransformerSizes:
    """Return BERT's sizes by name, for encoder and decoder; weights are drawn as widely as the paper's were."""
    sizes = TransformerSizes.released(name, vocabulary)
    return replace(sizes, spread=sizes.width**-0.5, **_OWN)


def sizes_of(config: Mapping[str, Any]) -> TransformerSizes:
    """Return the sizes that a config.json states; refuse what cannot be obeyed."""
    bert.check_only(config, _ONLY)
    found = {**_OWN, **bert.read_sizes(config, CONFIG_KEYS)}
    found["activation"] = _ACTIVATIONS.get(found["activation"], found["activation"])
    for key, like in _SHARED.items():
        if config.get(key, config[like]) != config[like]:
            raise SettingsError(
                f"{key} is {config[key]} and {like} {config[like]}; only a model with both alike is read"
            )
    layers = config.get("decoder_layers", found["num_layers"])
    if not isinstance(layers, int) or layers < 1:
        raise SettingsError(f"decoder_layers should be a whole number above 0, but is {layers!r}")
    own = 0 if layers == found["num_layers"] else layers
    return TransformerSizes(
        **found, num_decoder_layers=own, scales_pieces=bool(config.get("scale_embedding", False))
    )  # fmt: skip


def config_of(sizes: TransformerSizes, architectures: Sequence[str]) -> dict[str, Any]:
    """Return the config.json of these sizes; `architectures` are transformers' classes."""
    told = {key: getattr(sizes, name) for name, key in CONFIG_KEYS.items()}
    like = {key: told[of] for key, of in _SHARED.items()}
    own = {"decoder_layers": sizes.decoder.num_layers, "scale_embedding": sizes.scales_pieces}
    return {"model_type": "marian", "architectures": list(architectures), **told, **like, **own}


def names_of(sizes: TransformerSizes) -> dict[str, tuple[str, ...]]:
    """Return the whole table: our name of each tensor -> Hugging Face's."""
    names: dict[str, tuple[str, ...]] = {"pieces.weight": ("model.shared.weight",)}
    encoder, decoder = sizes.num_layers, sizes.decoder.num_layers
    stacks = (
        ("", "encoder", encoder, _LAYER_NAMES),
        ("decoder.", "decoder", decoder, {**_LAYER_NAMES, **_SOURCE_NAMES}),
    )
    for here, there, num_layers, table in stacks:
        for number in range(num_layers):
            path = f"model.{there}.layers.{number}."
            parts = {f"{here}layers.{number}.{our}": tuple(path + one for one in own) for our, own in table.items()}
            names |= with_ends(parts)
    return names
