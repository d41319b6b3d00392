"""The layer of a decoder: hidden states and the cache of a source in, hidden states out.

N tokens, M tokens whose output is needed, C sources of S positions, D hidden size, H heads, d = D / H.
"""

from __future__ import annotations

import torch
from torch import nn

from bertworks.encoders.encoded import BatchLayout, OutputPositions
from bertworks.encoders.layers import (
    NO_SEEDS,
    Attention,
    KeyValueCache,
    Layer,
    LayerConfig,
    LayerSeeds,
    attend,
    offset_seed,
)
from bertworks.encoders.linear import apply_linear

# Added to the seeds of self-attention for those of cross-attention.
_SEED_OFFSET = 0x5BD1E995 % 2**31


class CrossAttention(Attention):
    """Attention of a decoder's tokens (queries) to a source (keys and values)."""

    def compute_cache(self, source_states: torch.Tensor) -> KeyValueCache:
        """Return the keys and values (C, H, S, d) of encoded sources (C, S, D)."""
        num_sources, length, hidden_size = source_states.shape
        key_value = apply_linear(source_states.flatten(0, 1), self.query_key_value, slice(hidden_size, None))
        keys, values = key_value.view(num_sources, length, 2, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        return keys, values

    def attend_source(
        self, x: torch.Tensor, cache: KeyValueCache, mask: torch.Tensor | None, seed: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the context vectors (N, D), before the projection `out`. Sequences of one source are consecutive."""
        keys, values = cache
        hidden_size = x.shape[1]
        queries = apply_linear(x, self.query_key_value, slice(hidden_size)).view(len(keys), -1, *keys.shape[1::2])
        context = attend(queries.transpose(1, 2), keys, values, mask, seed, self.dropout_prob)  # (C, H, N / C, d)
        return context.transpose(1, 2).reshape(-1, hidden_size)


class DecoderLayer(Layer):
    """A layer of a decoder: self-attention, cross-attention to a source, a feed-forward network."""

    def __init__(self, config: LayerConfig, layer_index: int) -> None:
        super().__init__(config)
        self.layer_index = layer_index
        self.cross_attention = CrossAttention(
            config.hidden_size, config.num_attention_heads, config.attention_probs_dropout_prob
        )
        self.cross_attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x: torch.Tensor, layout: BatchLayout, seeds: LayerSeeds | None = None) -> torch.Tensor:
        """Return (N, D): x = norm(x + attention(x)), norm(x + cross_attention(x)), norm(x + feed_forward(x))."""
        seeds = seeds or NO_SEEDS
        return self._add_sublayers(x, self.attention(x, layout, seeds[0]), layout, seeds)

    def forward_at(
        self, x: torch.Tensor, layout: BatchLayout, seeds: LayerSeeds | None, outputs: OutputPositions
    ) -> torch.Tensor:
        """Return (M, D): the same for some tokens; nearly all are needed, so all are computed."""
        return self(x, layout, seeds)[outputs.token_indices]

    def forward_with_cache(
        self, x: torch.Tensor, layout: BatchLayout, cache: KeyValueCache | None
    ) -> tuple[torch.Tensor, KeyValueCache]:
        """Return (N, D): the same for tokens that continue the cached ones; and the extended cache."""
        context, cache = self.attention.forward_with_cache(x, layout, cache)
        return self._add_sublayers(x, context, layout, NO_SEEDS), cache

    def _add_sublayers(
        self, x: torch.Tensor, context: torch.Tensor, layout: BatchLayout, seeds: LayerSeeds
    ) -> torch.Tensor:
        """Return the output of the layer, given the context vectors of self-attention."""
        assert layout.source_cache is not None, "a decoder needs a source"
        weights_seed, attention_seed, output_seed = seeds
        x = self.attention_norm(self.add_attention(x, context, attention_seed))
        keys_values, mask = layout.source_cache.keys_values[self.layer_index], layout.source_cache.mask
        context = self.cross_attention.attend_source(x, keys_values, mask, offset_seed(weights_seed, _SEED_OFFSET))
        x = self.cross_attention_norm(
            self.add_projection(x, context, self.cross_attention.out, offset_seed(attention_seed, _SEED_OFFSET))
        )
        return self.norm(self.add_feed_forward(x, output_seed))
