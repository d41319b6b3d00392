"""ALBERT: a Batch in, an Encoded out. Narrow embeddings that are widened once, and one layer that is passed many times.

N pieces, E width of embeddings, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bertworks.encoders import bert
from bertworks.encoders.encoded import Layout
from bertworks.encoders.layers import Layer
from bertworks.encoders.stack import BertSizes, Stack, initialise
from bertworks.encoders.tensor_names import with_ends
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch

# Layers, width, heads and width of embeddings. The released ones are base and above; the small ones are ours.
RELEASED = {
    "tiny": (2, 128, 2, 64),
    "mini": (4, 256, 4, 128),
    "small": (4, 512, 8, 128),
    "medium": (8, 512, 8, 128),
    "base": (12, 768, 12, 128),
    "large": (24, 1024, 16, 128),
    "xlarge": (24, 2048, 16, 128),
    "xxlarge": (12, 4096, 64, 128),
}


@dataclass(frozen=True, slots=True)
class AlbertSizes(BertSizes):
    """What an ALBERT is made of."""

    embedding_width: int = 128

    @property
    def table_width(self) -> int:
        return self.embedding_width


class Albert(Stack):
    """The encoder of ALBERT, with its pooler."""

    sizes: AlbertSizes

    def __init__(self, sizes: AlbertSizes, generator: torch.Generator | None = None) -> None:
        super().__init__(sizes)
        self.pieces = nn.Embedding(sizes.vocabulary, sizes.embedding_width)
        self.positions = nn.Embedding(sizes.positions, sizes.embedding_width)
        self.segments = nn.Embedding(sizes.segments, sizes.embedding_width)
        self.norm = nn.LayerNorm(sizes.embedding_width, eps=sizes.norm_eps)
        self.widen = nn.Linear(sizes.embedding_width, sizes.width)
        self.layers = nn.ModuleList([Layer(sizes.layer)])
        self.pooler = nn.Linear(sizes.width, sizes.width)
        initialise(self, sizes.spread, generator)

    @property
    def stacked(self) -> Sequence[Layer]:
        """The one layer, as often as the model is deep."""
        return list(self.layers) * self.sizes.num_layers  # type: ignore[return-value]

    def embed(self, batch: Batch, layout: Layout) -> torch.Tensor:
        """Return (N, D): the three embeddings of each piece (N, E), summed, normalised and widened."""
        pieces, places, segments = self.looked_up(batch, layout)
        return self.widen(self.norm(pieces + self.positions(places) + self.segments(segments)))


# Settings that would change the numbers, and the only value of each that is computed here.
ONLY = {"num_hidden_groups": 1, "inner_group_num": 1}

HEADS = {
    "masked": {
        **with_ends({"dense": ("predictions.dense",), "norm": ("predictions.LayerNorm",)}),
        "bias": ("predictions.bias",),
    },
    "pair": with_ends({"score": ("sop_classifier.classifier",)}),
    "rows": bert.HEADS["rows"],
    "places": bert.HEADS["places"],
    "choices": bert.HEADS["choices"],
    "spans": bert.HEADS["spans"],
}
COPIES = {
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
}
_LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0."
_LAYER_NAMES = {
    "attention.query_key_value": ("attention.query", "attention.key", "attention.value"),
    "attention.out": ("attention.dense",),
    "attention_norm": ("attention.LayerNorm",),
    "inner": ("ffn",),
    "outer": ("ffn_output",),
    "norm": ("full_layer_layer_norm",),
}


def released(name: str, vocabulary: int) -> AlbertSizes:
    """Return one of the released sizes, or a small one of ours, by name. ALBERT drops nothing."""
    if name not in RELEASED:
        raise SettingsError(f"there is no size '{name}'; choose one of: {', '.join(RELEASED)}")
    num_layers, width, num_heads, embedding_width = RELEASED[name]
    return AlbertSizes(
        vocabulary, width, num_layers, num_heads, 4 * width, activation="gelu_new", family="albert",
        embedding_width=embedding_width,
    )  # fmt: skip


def sizes_of(config: Mapping[str, Any]) -> AlbertSizes:
    """Return the sizes that a config.json states; refuse what cannot be obeyed."""
    bert.check_only(config, ONLY)
    found = bert.read_sizes(config, bert.CONFIG_KEYS)
    width = config.get("embedding_size", 128)
    if not isinstance(width, int) or width < 1:
        raise SettingsError(f"embedding_size should be a whole number above 0, but is {width!r}")
    return AlbertSizes(**found, family="albert", embedding_width=width)


def config_of(sizes: AlbertSizes, architectures: Sequence[str]) -> dict[str, Any]:
    """Return the config.json of these sizes; `architectures` are transformers' classes."""
    own = {"model_type": "albert", "embedding_size": sizes.embedding_width, "num_hidden_groups": 1}
    return {**bert.config_of(sizes, architectures), **own, "inner_group_num": 1}


def names_of(sizes: AlbertSizes) -> dict[str, tuple[str, ...]]:
    """Return the whole table: our name of each tensor -> Hugging Face's, in the order of their rows."""
    tables = {
        ours: tuple(name.replace("bert.", "albert.", 1) for name in theirs)
        for ours, theirs in bert.NAMES.items()
        if not ours.startswith("pooler.")
    }
    inside = {f"layers.0.{ours}": tuple(_LAYER + name for name in theirs) for ours, theirs in _LAYER_NAMES.items()}
    ends = {"widen": ("albert.encoder.embedding_hidden_mapping_in",), "pooler": ("albert.pooler",)}
    return {**tables, **with_ends(ends), **with_ends(inside)}
