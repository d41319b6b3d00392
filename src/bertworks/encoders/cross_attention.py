"""What a decoder's layer has more than an encoder's: places that have read their own row and a source in, values out.

N pieces of R rows of T places, C sources of S places, D width, H heads, d = D / H.
"""

from __future__ import annotations

import torch
from torch import nn

from bertworks.encoders.encoded import Layout, Wanted
from bertworks.encoders.layers import Attention, KeysValues, Layer, LayerSizes, attended
from bertworks.encoders.linear import product

# How far apart the seeds of the second attention lie from those of the first.
_APART = 0x5BD1E995 % 2**31


class SourceAttention(Attention):
    """Every piece reads a source instead of its own row: queries are of the piece, keys and values of the source."""

    def kept(self, values: torch.Tensor) -> KeysValues:
        """Return keys and values of what an encoder made of sources (C, S, D), each (C, H, S, d)."""
        rows, places, width = values.shape
        mixed = product(values.flatten(0, 1), self.query_key_value, slice(width, None))  # (C * S, 2D)
        keys, read = mixed.view(rows, places, 2, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        return keys, read

    def crossed(
        self, values: torch.Tensor, kept: KeysValues, mask: torch.Tensor | None, seed: torch.Tensor | None
    ) -> torch.Tensor:
        """Return (N, D): what every piece read, before the product `out`. Rows of a source lie together."""
        keys, read = kept
        width = values.shape[1]
        asked = product(values, self.query_key_value, slice(width)).view(len(keys), -1, *keys.shape[1::2])
        found = attended(asked.transpose(1, 2), keys, read, mask, seed, self.dropout)  # (C, H, R / C * T, d)
        return found.transpose(1, 2).reshape(-1, width)


class SourceLayer(Layer):
    """A layer of a decoder, its number given: attention to one's own row, to a source, then a feed-forward network."""

    def __init__(self, sizes: LayerSizes, number: int) -> None:
        super().__init__(sizes)
        self.number = number
        self.source = SourceAttention(sizes.width, sizes.num_heads, sizes.attention_dropout)
        self.source_norm = nn.LayerNorm(sizes.width, eps=sizes.norm_eps)

    def forward(
        self, values: torch.Tensor, layout: Layout, seeds: tuple[torch.Tensor, ...] | None = None
    ) -> torch.Tensor:
        first = None if seeds is None else seeds[0]
        return self._crossed(values, self.attention(values, layout, first), layout, seeds)

    def at(
        self, values: torch.Tensor, layout: Layout, seeds: tuple[torch.Tensor, ...] | None, wanted: Wanted
    ) -> torch.Tensor:
        """Return (M, D): the same, of the wanted pieces only. A decoder is mostly asked about all of them."""
        return self(values, layout, seeds)[wanted.pieces]

    def onward(
        self, values: torch.Tensor, layout: Layout, before: KeysValues | None
    ) -> tuple[torch.Tensor, KeysValues]:
        """Return (N, D): the same of pieces that go on behind others; and keys and values of all."""
        read, kept = self.attention.onward(values, layout, before)
        return self._crossed(values, read, layout, None), kept

    def _crossed(
        self, values: torch.Tensor, read: torch.Tensor, layout: Layout, seeds: tuple[torch.Tensor, ...] | None
    ) -> torch.Tensor:
        """Return what follows the first attention, of pieces that have read."""
        assert layout.source is not None, "a decoder has to be given a source"
        first, second, third = seeds or (None, None, None)
        values = self._added(values, read, self.attention, self.attention_norm, second)
        across = self.source.crossed(values, layout.source.kept[self.number], layout.source.mask, _apart(first))
        values = self._added(values, across, self.source, self.source_norm, _apart(second))
        return self._fed(values, third)


def _apart(seed: torch.Tensor | None) -> torch.Tensor | None:
    return None if seed is None else seed + _APART
