"""BERT: a Batch in, an Encoded out. Two-way Transformer layers over summed piece, position and segment embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from bertworks.encoders.dropping import drop
from bertworks.encoders.encoded import Encoded, Layout, layout_of
from bertworks.encoders.layers import ACTIVATIONS, Layer, LayerSizes, Seeds
from bertworks.errors import InputError, SettingsError
from bertworks.examples.batch import Batch

# Layers, width and heads of the released sizes; the inner width is always four times the width.
RELEASED = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}


@dataclass(frozen=True, slots=True)
class BertSizes:
    """What a BERT is made of. The defaults are the paper's Base."""

    vocabulary: int = 30_522
    width: int = 768
    num_layers: int = 12
    num_heads: int = 12
    inner: int = 3_072
    positions: int = 512
    segments: int = 2
    activation: str = "gelu"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    norm_eps: float = 1e-12
    spread: float = 0.02

    def __post_init__(self) -> None:
        if self.width % self.num_heads:
            raise SettingsError(f"width {self.width} cannot be divided among {self.num_heads} heads; choose a multiple")
        if self.activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise SettingsError(f"there is no activation '{self.activation}'; choose one of: {known}")

    @classmethod
    def released(cls, name: str, vocabulary: int) -> BertSizes:
        """Return one of the released sizes by name."""
        if name not in RELEASED:
            raise SettingsError(f"there is no size '{name}'; choose one of: {', '.join(RELEASED)}")
        num_layers, width, num_heads = RELEASED[name]
        return cls(vocabulary, width, num_layers, num_heads, 4 * width)

    @property
    def layer(self) -> LayerSizes:
        return LayerSizes(
            self.width,
            self.num_heads,
            self.inner,
            self.dropout,
            self.attention_dropout,
            self.activation,
            self.norm_eps,
        )


class Bert(nn.Module):
    """The encoder of BERT, with its pooler. In training mode it drops values, and then needs a step's seeds."""

    reads = ("both", "left", "given")

    def __init__(self, sizes: BertSizes, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.sizes = sizes
        self.pieces = nn.Embedding(sizes.vocabulary, sizes.width)
        self.positions = nn.Embedding(sizes.positions, sizes.width)
        self.segments = nn.Embedding(sizes.segments, sizes.width)
        self.norm = nn.LayerNorm(sizes.width, eps=sizes.norm_eps)
        self.layers = nn.ModuleList(Layer(sizes.layer) for _ in range(sizes.num_layers))
        self.pooler = nn.Linear(sizes.width, sizes.width)
        initialise(self, sizes.spread, generator)

    def forward(self, batch: Batch, state: object | None = None, seeds: Seeds | None = None) -> Encoded:
        """Return all layers and the pooled first piece. `seeds` are for dropout, and only used in training mode."""
        self._check(batch)
        seeds = seeds if self.training else None
        layout = layout_of(batch)
        values = self._embed(batch, layout)
        values = drop(values, seeds.of(0) if seeds else None, self.sizes.dropout)
        found = [values]
        for number, layer in enumerate(self.layers):
            own = tuple(seeds.of(3 * number + place) for place in (1, 2, 3)) if seeds else None
            values = layer(values, layout, own)
            found.append(values)
        summary = torch.tanh(self.pooler(values[layout.starts]))  # (B, D)
        return Encoded(tuple(found), summary, layout)

    def _embed(self, batch: Batch, layout: Layout) -> torch.Tensor:
        """Return (N, D): the three embeddings of each piece, summed and normalised."""
        width = batch.ids.shape[1]
        ids, segments = batch.ids.flatten(), batch.segments.flatten()
        if layout.index is None:
            positions = self.positions.weight[:width].repeat(batch.ids.shape[0], 1)
        else:
            ids, segments = ids[layout.index], segments[layout.index]
            positions = self.positions(layout.index % width)
        return self.norm(self.pieces(ids) + positions + self.segments(segments))

    def _check(self, batch: Batch) -> None:
        if batch.ids.shape[1] > self.sizes.positions:
            raise InputError(
                f"a row of {batch.ids.shape[1]} places is longer than the {self.sizes.positions} positions of this "
                f"model; cut the text into windows, or choose a shorter length"
            )


def initialise(module: nn.Module, spread: float, generator: torch.Generator | None) -> None:
    """Draw weights from a normal distribution cut at two standard deviations; biases 0, norms 1. As in the release."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(part.weight, 0.0, spread, -2 * spread, 2 * spread, generator=generator)
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.bias)


# Hugging Face's name of each part of a BERT and ours. A layer's parts stand below "encoder.layer.N." there and
# "layers.N." here. Their query, key and value are three products, ours is one: its rows are theirs, one under the other.
EMBEDDING_NAMES = {
    "embeddings.word_embeddings.weight": "pieces.weight",
    "embeddings.position_embeddings.weight": "positions.weight",
    "embeddings.token_type_embeddings.weight": "segments.weight",
    "embeddings.LayerNorm.weight": "norm.weight",
    "embeddings.LayerNorm.bias": "norm.bias",
    "pooler.dense.weight": "pooler.weight",
    "pooler.dense.bias": "pooler.bias",
}
LAYER_NAMES = {
    "attention.self.query": "attention.query_key_value[0]",
    "attention.self.key": "attention.query_key_value[1]",
    "attention.self.value": "attention.query_key_value[2]",
    "attention.output.dense": "attention.out",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "inner",
    "output.dense": "outer",
    "output.LayerNorm": "norm",
}
