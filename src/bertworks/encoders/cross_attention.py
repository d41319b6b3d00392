"""What a decoder's layer has more than an encoder's: places that have read their own row and a source in, values out.

N pieces of R rows of T places, C sources of S places, D width, H heads, d = D / H.
"""

from __future__ import annotations

import torch
from torch import nn

from bertworks.encoders.encoded import BatchLayout, OutputPositions
from bertworks.encoders.layers import Attention, KeyValueCache, Layer, LayerConfig, attend
from bertworks.encoders.linear import apply_linear

# How far apart the seeds of the second attention lie from those of the first.
_SEED_OFFSET = 0x5BD1E995 % 2**31


class CrossAttention(Attention):
    """Every piece reads a source instead of its own row: queries are of the piece, keys and values of the source."""

    def compute_cache(self, source_states: torch.Tensor) -> KeyValueCache:
        """Return keys and values of what an encoder made of sources (C, S, D), each (C, H, S, d)."""
        rows, places, width = source_states.shape
        mixed = apply_linear(source_states.flatten(0, 1), self.query_key_value, slice(width, None))  # (C * S, 2D)
        keys, read = mixed.view(rows, places, 2, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        return keys, read

    def attend_source(
        self, hidden_states: torch.Tensor, cache: KeyValueCache, mask: torch.Tensor | None, seed: torch.Tensor | None
    ) -> torch.Tensor:
        """Return (N, D): what every piece read, before the product `out`. Rows of a source lie together."""
        keys, read = cache
        width = hidden_states.shape[1]
        asked = apply_linear(hidden_states, self.query_key_value, slice(width)).view(len(keys), -1, *keys.shape[1::2])
        found = attend(asked.transpose(1, 2), keys, read, mask, seed, self.dropout_prob)  # (C, H, R / C * T, d)
        return found.transpose(1, 2).reshape(-1, width)


class DecoderLayer(Layer):
    """A layer of a decoder, its number given: attention to one's own row, to a source, then a feed-forward network."""

    def __init__(self, config: LayerConfig, layer_index: int) -> None:
        super().__init__(config)
        self.layer_index = layer_index
        self.cross_attention = CrossAttention(
            config.hidden_size, config.num_attention_heads, config.attention_probs_dropout_prob
        )
        self.cross_attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(
        self, hidden_states: torch.Tensor, layout: BatchLayout, seeds: tuple[torch.Tensor, ...] | None = None
    ) -> torch.Tensor:
        first = None if seeds is None else seeds[0]
        return self._after_self_attention(hidden_states, self.attention(hidden_states, layout, first), layout, seeds)

    def forward_at(
        self,
        hidden_states: torch.Tensor,
        layout: BatchLayout,
        seeds: tuple[torch.Tensor, ...] | None,
        output_positions: OutputPositions,
    ) -> torch.Tensor:
        """Return (M, D): the same, of the wanted pieces only. A decoder is mostly asked about all of them."""
        return self(hidden_states, layout, seeds)[output_positions.token_indices]

    def forward_with_cache(
        self, hidden_states: torch.Tensor, layout: BatchLayout, cache: KeyValueCache | None
    ) -> tuple[torch.Tensor, KeyValueCache]:
        """Return (N, D): the same of pieces that go on behind others; and keys and values of all."""
        read, kept = self.attention.forward_with_cache(hidden_states, layout, cache)
        return self._after_self_attention(hidden_states, read, layout, None), kept

    def _after_self_attention(
        self,
        hidden_states: torch.Tensor,
        attention_output: torch.Tensor,
        layout: BatchLayout,
        seeds: tuple[torch.Tensor, ...] | None,
    ) -> torch.Tensor:
        """Return what follows the first attention, of pieces that have read."""
        assert layout.source_cache is not None, "a decoder has to be given a source"
        first, second, third = seeds or (None, None, None)
        hidden_states = self._add_attention(
            hidden_states, attention_output, self.attention, self.attention_norm, second
        )
        across = self.cross_attention.attend_source(
            hidden_states,
            layout.source_cache.keys_values[self.layer_index],
            layout.source_cache.mask,
            _offset_seed(first),
        )
        hidden_states = self._add_attention(
            hidden_states, across, self.cross_attention, self.cross_attention_norm, _offset_seed(second)
        )
        return self._add_feed_forward(hidden_states, third)


def _offset_seed(seed: torch.Tensor | None) -> torch.Tensor | None:
    return None if seed is None else seed + _SEED_OFFSET
