"""The bricks of a Transformer: tensors in, tensors out.

N pieces, D width, H heads, d = D / H, T places of a row, C rows of a group, I inner width; M pieces that are wanted, at
most K of a row of a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from bertworks.encoders.dropout import drop, kept
from bertworks.encoders.encoded import Group, Layout, Wanted
from bertworks.encoders.kernels import DroppedAttention, GeluFeedForward
from bertworks.encoders.linear import is_plain, joined, joins, product

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda values: F.gelu(values, approximate="tanh"),
    "gelu_pytorch_tanh": lambda values: F.gelu(values, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


# What a layer read of some places: each (C, H, T, d).
KeysValues = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Seeds:
    """Where dropout takes its decisions from: one number a step, from which each place of the network makes its own."""

    base: torch.Tensor

    def of(self, number: int) -> torch.Tensor:
        """Return the seed of place `number`; a large odd stride keeps the places apart."""
        return self.base + torch.tensor(number * 0x3C6EF35 % 2**31, dtype=torch.int32, device=self.base.device)


class Attention(nn.Module):
    """Every piece reads the others of its row: one product for queries, keys and values, then one for the outcome."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, values: torch.Tensor, layout: Layout, seed: torch.Tensor | None) -> torch.Tensor:
        """Return (N, D): what every piece read, before the product `out`."""
        mixed = product(values, self.query_key_value)  # (N, 3D)
        if len(layout.groups) == 1:
            return self._read(mixed, layout.groups[0], seed)
        parts = [
            self._read(mixed[group.start : group.start + group.count * group.length], group, shifted(seed, group.start))
            for group in layout.groups
        ]
        return torch.cat(parts)

    def _read(self, mixed: torch.Tensor, group: Group, seed: torch.Tensor | None) -> torch.Tensor:
        if seed is not None and is_plain(mixed):
            size = torch.Size((group.count, self.num_heads, group.length, group.length))
            rows = (group.count, group.length, self.num_heads)
            return DroppedAttention.apply(mixed, rows, group.mask, kept(size, seed, self.dropout), self.dropout)  # type: ignore[no-untyped-call]
        width = mixed.shape[1] // 3
        shape = (group.count, group.length, 3, self.num_heads, width // self.num_heads)
        queries, keys, values = mixed.view(shape).permute(2, 0, 3, 1, 4)  # each (C, H, T, d)
        read = attended(queries, keys, values, group.mask, seed, self.dropout)
        return read.transpose(1, 2).reshape(group.count * group.length, width)

    def at(self, values: torch.Tensor, layout: Layout, seed: torch.Tensor | None, wanted: Wanted) -> torch.Tensor:
        """Return (M, D): the same of the wanted pieces. All others are read, and do not read."""
        width = values.shape[1]
        queries = product(values[wanted.lined], self.query_key_value, slice(width))
        mixed = product(values, self.query_key_value, slice(width, None))  # (N, 2D)
        parts, at = [], 0
        for group, count in zip(layout.groups, wanted.counts, strict=True):
            own = slice(at, at := at + group.count * count)
            shape = (group.count, -1, self.num_heads, width // self.num_heads)
            rows = mixed[group.start : group.start + group.count * group.length].view(*shape[:2], 2, *shape[2:])
            keys, read = rows.permute(2, 0, 3, 1, 4)  # each (C, H, T, d)
            mask = mask_at(group, wanted.lined[own])
            asked = queries[own].view(shape).transpose(1, 2)  # (C, H, K, d)
            found = attended(asked, keys, read, mask, shifted(seed, group.start), self.dropout)
            parts.append(found.transpose(1, 2).reshape(-1, width))
        return torch.cat(parts)[wanted.order]

    def shares(self, values: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Return (C, H, T, T): how much of each place every place reads. The rows lie in one group."""
        (group,) = layout.groups
        shape = (group.count, group.length, 3, self.num_heads, -1)
        queries, keys, _ = product(values, self.query_key_value).view(shape).permute(2, 0, 3, 1, 4)
        return shares_of(queries, keys, group.mask)

    def onward(
        self, values: torch.Tensor, layout: Layout, before: KeysValues | None
    ) -> tuple[torch.Tensor, KeysValues]:
        """Return (N, D): the same of pieces that also read those before them; and keys and values of all."""
        (group,), width = layout.groups, values.shape[1]
        shape = (group.count, group.length, 3, self.num_heads, width // self.num_heads)
        queries, keys, read = product(values, self.query_key_value).view(shape).permute(2, 0, 3, 1, 4)
        if before is not None:
            keys, read = torch.cat([before[0], keys], 2), torch.cat([before[1], read], 2)  # (C, H, before + T, d)
        found = attended(queries, keys, read, group.mask, None, self.dropout)
        return found.transpose(1, 2).reshape(-1, width), (keys, read)


def attended(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    seed: torch.Tensor | None,
    dropout: float,
) -> torch.Tensor:
    """Return (C, H, K, d): the values that queries (C, H, K, d) find by keys (C, H, T, d); scores have `mask` added."""
    if seed is None:
        # A mask of another precision than the queries' gives wrong numbers in double precision, without a word.
        mask = None if mask is None else mask.to(queries.dtype)
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    return drop(shares_of(queries, keys, mask), seed, dropout) @ values


def shares_of(queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return (C, H, K, T): how much of each place is read by queries (C, H, K, d), given its keys (C, H, T, d)."""
    scores = queries @ keys.transpose(-2, -1) * (1 / math.sqrt(queries.shape[-1]))
    return torch.softmax(scores if mask is None else scores + mask, -1)


def mask_at(group: Group, pieces: torch.Tensor) -> torch.Tensor | None:
    """Return (C, 1, 1 or K, T): the mask of those pieces of a group's rows, which lie row by row."""
    if group.mask is None or group.mask.shape[2] == 1:
        return group.mask
    places = (pieces - group.start).view(group.count, -1) % group.length  # (C, K)
    rows = torch.arange(group.count, device=places.device)[:, None]
    return group.mask[rows, 0, places][:, None]


def shifted(seed: torch.Tensor | None, start: int) -> torch.Tensor | None:
    return None if seed is None else seed + start


class Layer(nn.Module):
    """Attention, then a feed-forward network; each is added to what came in, and the sum is normalised (post-norm)."""

    def __init__(self, sizes: LayerSizes, attention: Attention | None = None) -> None:
        super().__init__()
        self.dropout = sizes.dropout
        self.attention = attention or Attention(sizes.width, sizes.num_heads, sizes.attention_dropout)
        self.attention_norm = nn.LayerNorm(sizes.width, eps=sizes.norm_eps)
        self.inner = nn.Linear(sizes.width, sizes.inner)
        self.outer = nn.Linear(sizes.inner, sizes.width)
        self.norm = nn.LayerNorm(sizes.width, eps=sizes.norm_eps)
        self.activation = ACTIVATIONS[sizes.activation]

    def forward(
        self, values: torch.Tensor, layout: Layout, seeds: tuple[torch.Tensor, ...] | None = None
    ) -> torch.Tensor:
        first, *others = seeds or (None, None, None)
        return self._joined(values, self.attention(values, layout, first), *others)

    def at(
        self, values: torch.Tensor, layout: Layout, seeds: tuple[torch.Tensor, ...] | None, wanted: Wanted
    ) -> torch.Tensor:
        """Return (M, D): the same, of the wanted pieces only. They read all pieces of their row."""
        first, *others = seeds or (None, None, None)
        return self._joined(values[wanted.pieces], self.attention.at(values, layout, first, wanted), *others)

    def onward(
        self, values: torch.Tensor, layout: Layout, before: KeysValues | None
    ) -> tuple[torch.Tensor, KeysValues]:
        """Return (N, D): the same of pieces that go on behind others; and keys and values of all."""
        read, kept = self.attention.onward(values, layout, before)
        return self._joined(values, read, None, None), kept

    def _joined(
        self, values: torch.Tensor, read: torch.Tensor, second: torch.Tensor | None, third: torch.Tensor | None
    ) -> torch.Tensor:
        """Return what follows attention, of pieces that have read."""
        return self._fed(self._added(values, read, self.attention, self.attention_norm, second), third)

    def _added(
        self,
        values: torch.Tensor,
        read: torch.Tensor,
        attention: Attention,
        norm: nn.LayerNorm,
        seed: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return (N, D): the values and what they read by an attention, normalised."""
        if seed is None and joins(values):
            return norm(joined(read, attention.out, values))
        return norm(values + drop(product(read, attention.out), seed, self.dropout))

    def _fed(self, values: torch.Tensor, seed: torch.Tensor | None) -> torch.Tensor:
        """Return (N, D): the values and what the feed-forward network makes of them, normalised."""
        if seed is None and joins(values):
            return self.norm(joined(self._activated(values), self.outer, values))
        return self.norm(values + drop(self._feed_forward(values), seed, self.dropout))

    def _feed_forward(self, values: torch.Tensor) -> torch.Tensor:
        inner, outer = self.inner, self.outer
        if self.activation is F.gelu and torch.is_grad_enabled() and is_plain(values):
            weights = (inner.weight, inner.bias, outer.weight, outer.bias)
            return GeluFeedForward.apply(values, *weights)  # type: ignore[no-untyped-call]
        return product(self._activated(values), outer)

    def _activated(self, values: torch.Tensor) -> torch.Tensor:
        """Return (N, I): the inner values."""
        if self.activation is F.gelu and joins(values):
            return joined(values, self.inner, activation="gelu")
        return self.activation(product(values, self.inner))


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """What one layer is made of."""

    width: int
    num_heads: int
    inner: int
    dropout: float = 0.1
    attention_dropout: float = 0.1
    activation: str = "gelu"
    norm_eps: float = 1e-12
