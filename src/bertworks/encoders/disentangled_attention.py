"""DeBERTa's attention: hidden states and embeddings of relative positions in, context vectors out.

The score of a query at position i and a key at position j is the sum of up to three products: content to content,
content of the query to the relative position i - j (c2p), and content of the key to it (p2c). All layers have the same
embeddings of relative positions. Their queries and keys are projected as those of tokens, or by matrices of their own.

N tokens, D hidden size, H heads, d = D / H. A group has C sequences of T positions, with L = 2T relative positions from
T down to 1 - T. K queries of a sequence.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from bertworks.encoders.dropout import dropout
from bertworks.encoders.encoded import BatchLayout, OutputPositions, SequenceGroup
from bertworks.encoders.layers import Attention, attend, attention_weights, merge_heads, offset_seed, score_terms
from bertworks.encoders.linear import apply_linear

# Kinds of products with positions -> the projection of positions, where it is not that of tokens.
POSITION_MODULES = {"c2p": "position_key", "p2c": "position_query"}
# Added to the seed of the attention weights: for the dropout of relative embeddings.
_RELATIVE_SEED = 7_919


@dataclass(frozen=True, slots=True, kw_only=True)
class DisentangledLayout(BatchLayout):
    """The layout of a batch with `relative_embeddings` (L, D): those of the relative positions of the longest group."""

    relative_embeddings: torch.Tensor


@dataclass(frozen=True, slots=True)
class RelativeProjections:
    """The queries and keys of relative positions, each (H, d, L): the queries from 1 - T up, the keys from T down.

    None where the model has no such products.
    """

    queries: torch.Tensor | None
    keys: torch.Tensor | None

    def for_length(self, length: int) -> RelativeProjections:
        """Return those of shorter sequences."""
        sizes = [part.shape[2] for part in (self.queries, self.keys) if part is not None]
        start = sizes[0] // 2 - length if sizes else 0
        span = slice(start, start + 2 * length)
        queries, keys = (None if part is None else part[..., span] for part in (self.queries, self.keys))
        return RelativeProjections(queries, keys)


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
    """Attention by content and relative position, with the products with positions of `kinds`.

    Its parameters are those of plain attention, and the projections of positions unless these `share` those of tokens.
    """

    def __init__(
        self, hidden_size: int, num_heads: int, dropout_prob: float, kinds: Collection[str], share: bool
    ) -> None:
        super().__init__(hidden_size, num_heads, dropout_prob)
        self.kinds, self.share = frozenset(kinds), share
        for kind in () if share else sorted(kinds):
            setattr(self, POSITION_MODULES[kind], nn.Linear(hidden_size, hidden_size))

    def forward(self, x: torch.Tensor, layout: BatchLayout, seed: torch.Tensor | None) -> torch.Tensor:
        """Return the context vectors (N, D) of all tokens (N, D), before the projection `out`."""
        query_key_value = apply_linear(x, self.query_key_value)  # (N, 3D)
        relative = self._project_relative(layout, seed)
        contexts = []
        for group in layout.groups:
            queries, keys, values = self._split_heads(query_key_value[group.tokens], group, 3)
            terms = self._score_terms(queries, keys, relative, group)
            group_seed = offset_seed(seed, group.start)
            context = attend(self._scale(queries), keys, values, terms, group_seed, self.dropout_prob)
            contexts.append(merge_heads(context))
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
            context = attend(self._scale(queries), keys, values, terms, group_seed, self.dropout_prob)
            contexts.append(merge_heads(context))
        return torch.cat(contexts)[outputs.order]

    def attention_weights(self, x: torch.Tensor, layout: BatchLayout) -> torch.Tensor:
        """Return the attention weights (C, H, T, T) of tokens (N, D) that are one group."""
        (group,) = layout.groups
        queries, keys, _ = self._split_heads(apply_linear(x, self.query_key_value), group, 3)
        terms = self._score_terms(queries, keys, self._project_relative(layout, None), group)
        return attention_weights(self._scale(queries), keys, terms)

    def _project_relative(self, layout: BatchLayout, seed: torch.Tensor | None) -> RelativeProjections:
        """Return the queries and keys of the relative positions of the longest group."""
        assert isinstance(layout, DisentangledLayout)
        embeddings = dropout(layout.relative_embeddings, offset_seed(seed, _RELATIVE_SEED), self.dropout_prob)
        num_positions, hidden_size = embeddings.shape
        parts: Sequence[torch.Tensor | None]
        if self.share:
            projected = apply_linear(embeddings, self.query_key_value, slice(2 * hidden_size))  # (L, 2D)
            parts = projected.view(num_positions, 2, self.num_heads, -1).permute(1, 2, 3, 0).unbind()  # (H, d, L) each
        else:
            parts = [self._project_positions(kind, embeddings) for kind in ("p2c", "c2p")]
        queries, keys = (part if kind in self.kinds else None for kind, part in zip(("p2c", "c2p"), parts, strict=True))
        if queries is not None:
            # The first relative position is that of no pair; from the second on the queries are in reverse order.
            queries = torch.cat([queries[..., :1], queries[..., 1:].flip(-1)], -1)
        return RelativeProjections(queries, keys)

    def _project_positions(self, kind: str, embeddings: torch.Tensor) -> torch.Tensor | None:
        """Return (H, d, L): the queries (p2c) or keys (c2p) of relative positions (L, D), by their own projection."""
        if kind not in self.kinds:
            return None
        projected = apply_linear(embeddings, self.get_submodule(POSITION_MODULES[kind]))  # type: ignore[arg-type]
        return projected.view(len(embeddings), self.num_heads, -1).permute(1, 2, 0)

    def _score_terms(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        relative: RelativeProjections,
        group: SequenceGroup,
        padded_indices: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """Return (C, H, K, T): the scores by relative position, and the mask; None without any."""
        relative = relative.for_length(group.length)
        scale = 1 / math.sqrt((1 + len(self.kinds)) * queries.shape[-1])
        mask = score_terms(group, padded_indices)
        positions, parts = None, []
        if padded_indices is not None:
            positions = (padded_indices - group.start).view(group.num_sequences, -1, 1) % group.length  # (C, K, 1)
        if relative.keys is not None:
            content_to_position = _products(queries, relative.keys)  # (H, C, K, L)
            if positions is None:
                scores = _shift(content_to_position)
            else:
                numbers = group.length - positions + torch.arange(group.length, device=positions.device)  # (C, K, T)
                scores = content_to_position.gather(3, numbers.expand(self.num_heads, -1, -1, -1))
            parts.append(scores.transpose(0, 1))
        if relative.queries is not None:
            scores = _shift(_products(keys, relative.queries)).permute(1, 0, 3, 2)  # (C, H, T, T)
            if positions is not None:
                rows = positions[:, None].expand(-1, self.num_heads, -1, group.length)  # (C, H, K, T)
                scores = scores.gather(2, rows)
            parts.append(scores)
        if not parts:
            return mask
        scores = sum(parts[1:], parts[0])
        return scores * scale if mask is None else scores * scale + mask.to(scores.dtype)

    def _scale(self, queries: torch.Tensor) -> torch.Tensor:
        """Return queries whose scaled products have the scale 1 / sqrt(n d) instead of 1 / sqrt(d), for n products."""
        return queries * (1 + len(self.kinds)) ** -0.5


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
