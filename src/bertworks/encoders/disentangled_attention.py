"""DeBERTa's attention: hidden states and embeddings of relative positions in, context vectors out.

The score of a query at position i and a key at position j is the sum of three products: content to content, content of
the query to the relative position i - j, and content of the key to it. All layers have the same embeddings of relative
positions, and queries and keys of positions are projected as those of tokens.

N tokens, D hidden size, H heads, d = D / H. A group has C sequences of T positions, with L = 2T relative positions from
T down to 1 - T. K queries of a sequence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from bertworks.encoders.dropout import dropout
from bertworks.encoders.encoded import BatchLayout, OutputPositions, SequenceGroup
from bertworks.encoders.layers import Attention, attend, attention_weights, merge_heads, offset_seed, score_terms
from bertworks.encoders.linear import apply_linear

# The number of products in a score, whose scale is 1 / sqrt(3 d).
_NUM_PRODUCTS = 3
# Added to the seed of the attention weights: for the dropout of relative embeddings.
_RELATIVE_SEED = 7_919


@dataclass(frozen=True, slots=True, kw_only=True)
class DisentangledLayout(BatchLayout):
    """The layout of a batch with `relative_embeddings` (L, D): those of the relative positions of the longest group."""

    relative_embeddings: torch.Tensor


@dataclass(frozen=True, slots=True)
class RelativeProjections:
    """The queries and keys of relative positions, each (H, d, L): the queries from 1 - T up, the keys from T down."""

    queries: torch.Tensor
    keys: torch.Tensor

    def for_length(self, length: int) -> RelativeProjections:
        """Return those of shorter sequences."""
        start = self.keys.shape[2] // 2 - length
        span = slice(start, start + 2 * length)
        return RelativeProjections(self.queries[..., span], self.keys[..., span])


def relative_positions(length: int, device: torch.device) -> torch.Tensor:
    """Return (L,): T, T - 1, …, 1 - T."""
    return torch.arange(length, -length, -1, device=device)


def log_buckets(positions: torch.Tensor, num_buckets: int, max_position: int) -> torch.Tensor:
    """Return the bucket of relative positions, from -num_buckets to num_buckets: small ones have their own, and from
    num_buckets / 2 on the buckets grow with the logarithm, up to `max_position`."""
    middle = num_buckets // 2
    magnitudes = positions.abs().clamp(min=middle)
    ratios = torch.log(magnitudes / middle) / torch.log(torch.tensor((max_position - 1) / middle))
    logarithmic = torch.ceil(ratios * (middle - 1)).long() + middle
    return torch.where(positions.abs() <= middle, positions, logarithmic * positions.sign())


class DisentangledAttention(Attention):
    """Attention by content and relative position. Its parameters are those of plain attention."""

    def forward(self, x: torch.Tensor, layout: BatchLayout, seed: torch.Tensor | None) -> torch.Tensor:
        """Return the context vectors (N, D) of all tokens (N, D), before the projection `out`."""
        query_key_value = apply_linear(x, self.query_key_value)  # (N, 3D)
        relative = self._project_relative(layout, seed)
        contexts = []
        for group in layout.groups:
            queries, keys, values = self._split_heads(query_key_value[group.tokens], group, 3)
            terms = self._score_terms(queries, keys, relative, group)
            group_seed = offset_seed(seed, group.start)
            contexts.append(merge_heads(attend(_scale(queries), keys, values, terms, group_seed, self.dropout_prob)))
        return layout.join_groups(contexts)

    def forward_at(
        self, x: torch.Tensor, layout: BatchLayout, seed: torch.Tensor | None, outputs: OutputPositions
    ) -> torch.Tensor:
        """Return the context vectors of the tokens whose output is needed; they attend to all tokens (N, D)."""
        hidden_size = x.shape[1]
        all_queries = apply_linear(x[outputs.padded_indices], self.query_key_value, slice(hidden_size))
        key_value = apply_linear(x, self.query_key_value, slice(hidden_size, None))  # (N, 2D)
        relative = self._project_relative(layout, seed)
        contexts, start = [], 0
        for group, count in zip(layout.groups, outputs.counts, strict=True):
            span = slice(start, start := start + group.num_sequences * count)
            keys, values = self._split_heads(key_value[group.tokens], group, 2)
            shape = (group.num_sequences, count, self.num_heads, hidden_size // self.num_heads)
            queries = all_queries[span].view(shape).transpose(1, 2)  # (C, H, K, d)
            terms = self._score_terms(queries, keys, relative, group, outputs.padded_indices[span])
            group_seed = offset_seed(seed, group.start)
            contexts.append(merge_heads(attend(_scale(queries), keys, values, terms, group_seed, self.dropout_prob)))
        return torch.cat(contexts)[outputs.order]

    def attention_weights(self, x: torch.Tensor, layout: BatchLayout) -> torch.Tensor:
        """Return the attention weights (C, H, T, T) of tokens (N, D) that are one group."""
        (group,) = layout.groups
        queries, keys, _ = self._split_heads(apply_linear(x, self.query_key_value), group, 3)
        terms = self._score_terms(queries, keys, self._project_relative(layout, None), group)
        return attention_weights(_scale(queries), keys, terms)

    def _project_relative(self, layout: BatchLayout, seed: torch.Tensor | None) -> RelativeProjections:
        """Return the queries and keys of the relative positions of the longest group."""
        assert isinstance(layout, DisentangledLayout)
        embeddings = dropout(layout.relative_embeddings, offset_seed(seed, _RELATIVE_SEED), self.dropout_prob)
        num_positions, hidden_size = embeddings.shape
        projected = apply_linear(embeddings, self.query_key_value, slice(2 * hidden_size))  # (L, 2D)
        queries, keys = projected.view(num_positions, 2, self.num_heads, -1).permute(1, 2, 3, 0)  # (H, d, L) each
        # The first relative position of each is that of no pair; from the second on the queries are in reverse order.
        return RelativeProjections(torch.cat([queries[..., :1], queries[..., 1:].flip(-1)], -1), keys)

    def _score_terms(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        relative: RelativeProjections,
        group: SequenceGroup,
        padded_indices: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return (C, H, K, T): the scores by relative position, and the mask."""
        relative = relative.for_length(group.length)
        scale = 1 / math.sqrt(_NUM_PRODUCTS * queries.shape[-1])
        position_to_content = _shift(_products(keys, relative.queries)).permute(1, 0, 3, 2)  # (C, H, T, T)
        content_to_position = _products(queries, relative.keys)  # (H, C, K, L)
        if padded_indices is None:
            scores = _shift(content_to_position).transpose(0, 1) + position_to_content
        else:
            positions = (padded_indices - group.start).view(group.num_sequences, -1, 1) % group.length  # (C, K, 1)
            numbers = group.length - positions + torch.arange(group.length, device=positions.device)  # (C, K, T)
            scores = content_to_position.gather(3, numbers.expand(self.num_heads, -1, -1, -1)).transpose(0, 1)
            rows = positions[:, None].expand(-1, self.num_heads, -1, group.length)  # (C, H, K, T)
            scores = scores + position_to_content.gather(2, rows)
        mask = score_terms(group, padded_indices)
        return scores * scale if mask is None else scores * scale + mask.to(scores.dtype)


def _scale(queries: torch.Tensor) -> torch.Tensor:
    """Return queries whose scaled products have the scale 1 / sqrt(3 d) instead of 1 / sqrt(d)."""
    return queries * _NUM_PRODUCTS**-0.5


def _products(values: torch.Tensor, relative: torch.Tensor) -> torch.Tensor:
    """Return (H, C, K, L): the products of queries or keys (C, H, K, d) with relative positions (H, d, L)."""
    num_sequences, num_heads, count, _ = values.shape
    products = torch.bmm(values.transpose(0, 1).flatten(1, 2), relative)
    return products.view(num_heads, num_sequences, count, -1)


def _shift(products: torch.Tensor) -> torch.Tensor:
    """Return (H, C, T, T) of products (H, C, T, L): the one of positions i and j has the number T - i + j, so that each
    row begins one before the row above."""
    length = products.shape[2]
    shifted = products.flatten(2)[..., length:].view(*products.shape[:3], -1)
    return shifted[..., :length]
