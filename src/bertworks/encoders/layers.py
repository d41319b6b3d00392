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

from bertworks.encoders.dropout import dropout, dropout_mask
from bertworks.encoders.encoded import BatchLayout, OutputPositions, SequenceGroup
from bertworks.encoders.kernels import DropoutAttention, GeluFeedForward
from bertworks.encoders.linear import apply_linear, can_fuse, fused_linear, use_custom_kernels

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda values: F.gelu(values, approximate="tanh"),
    "gelu_pytorch_tanh": lambda values: F.gelu(values, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


# What a layer read of some places: each (C, H, T, d).
KeyValueCache = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class DropoutSeeds:
    """Where dropout takes its decisions from: one number a step, from which each place of the network makes its own."""

    base: torch.Tensor

    def seed_for(self, index: int) -> torch.Tensor:
        """Return the seed of place `number`; a large odd stride keeps the places apart."""
        return self.base + torch.tensor(index * 0x3C6EF35 % 2**31, dtype=torch.int32, device=self.base.device)


class Attention(nn.Module):
    """Every piece reads the others of its row: one product for queries, keys and values, then one for the outcome."""

    def __init__(self, hidden_size: int, num_heads: int, dropout_prob: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout_prob = dropout_prob
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.out = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states: torch.Tensor, layout: BatchLayout, seed: torch.Tensor | None) -> torch.Tensor:
        """Return (N, D): what every piece read, before the product `out`."""
        mixed = apply_linear(hidden_states, self.query_key_value)  # (N, 3D)
        if len(layout.groups) == 1:
            return self._attend(mixed, layout.groups[0], seed)
        parts = [
            self._attend(
                mixed[group.start : group.start + group.num_sequences * group.length],
                group,
                offset_seed(seed, group.start),
            )
            for group in layout.groups
        ]
        return torch.cat(parts)

    def _attend(self, query_key_value: torch.Tensor, group: SequenceGroup, seed: torch.Tensor | None) -> torch.Tensor:
        if seed is not None and use_custom_kernels(query_key_value):
            size = torch.Size((group.num_sequences, self.num_heads, group.length, group.length))
            rows = (group.num_sequences, group.length, self.num_heads)
            return DropoutAttention.apply(
                query_key_value, rows, group.mask, dropout_mask(size, seed, self.dropout_prob), self.dropout_prob
            )  # type: ignore[no-untyped-call]
        width = query_key_value.shape[1] // 3
        shape = (group.num_sequences, group.length, 3, self.num_heads, width // self.num_heads)
        queries, keys, values = query_key_value.view(shape).permute(2, 0, 3, 1, 4)  # each (C, H, T, d)
        read = attend(queries, keys, values, group.mask, seed, self.dropout_prob)
        return read.transpose(1, 2).reshape(group.num_sequences * group.length, width)

    def forward_at(
        self,
        hidden_states: torch.Tensor,
        layout: BatchLayout,
        seed: torch.Tensor | None,
        output_positions: OutputPositions,
    ) -> torch.Tensor:
        """Return (M, D): the same of the wanted pieces. All others are read, and do not read."""
        width = hidden_states.shape[1]
        queries = apply_linear(hidden_states[output_positions.padded_indices], self.query_key_value, slice(width))
        mixed = apply_linear(hidden_states, self.query_key_value, slice(width, None))  # (N, 2D)
        parts, at = [], 0
        for group, count in zip(layout.groups, output_positions.counts, strict=True):
            own = slice(at, at := at + group.num_sequences * count)
            shape = (group.num_sequences, -1, self.num_heads, width // self.num_heads)
            rows = mixed[group.start : group.start + group.num_sequences * group.length].view(*shape[:2], 2, *shape[2:])
            keys, read = rows.permute(2, 0, 3, 1, 4)  # each (C, H, T, d)
            mask = mask_at(group, output_positions.padded_indices[own])
            asked = queries[own].view(shape).transpose(1, 2)  # (C, H, K, d)
            found = attend(asked, keys, read, mask, offset_seed(seed, group.start), self.dropout_prob)
            parts.append(found.transpose(1, 2).reshape(-1, width))
        return torch.cat(parts)[output_positions.order]

    def attention_weights(self, hidden_states: torch.Tensor, layout: BatchLayout) -> torch.Tensor:
        """Return (C, H, T, T): how much of each place every place reads. The rows lie in one group."""
        (group,) = layout.groups
        shape = (group.num_sequences, group.length, 3, self.num_heads, -1)
        queries, keys, _ = apply_linear(hidden_states, self.query_key_value).view(shape).permute(2, 0, 3, 1, 4)
        return attention_weights(queries, keys, group.mask)

    def forward_with_cache(
        self, hidden_states: torch.Tensor, layout: BatchLayout, cache: KeyValueCache | None
    ) -> tuple[torch.Tensor, KeyValueCache]:
        """Return (N, D): the same of pieces that also read those before them; and keys and values of all."""
        (group,), width = layout.groups, hidden_states.shape[1]
        shape = (group.num_sequences, group.length, 3, self.num_heads, width // self.num_heads)
        queries, keys, read = apply_linear(hidden_states, self.query_key_value).view(shape).permute(2, 0, 3, 1, 4)
        if cache is not None:
            keys, read = torch.cat([cache[0], keys], 2), torch.cat([cache[1], read], 2)  # (C, H, before + T, d)
        found = attend(queries, keys, read, group.mask, None, self.dropout_prob)
        return found.transpose(1, 2).reshape(-1, width), (keys, read)


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    seed: torch.Tensor | None,
    dropout_prob: float,
) -> torch.Tensor:
    """Return (C, H, K, d): the values that queries (C, H, K, d) find by keys (C, H, T, d); scores have `mask` added."""
    if seed is None:
        # A mask of another precision than the queries' gives wrong numbers in double precision, without a word.
        mask = None if mask is None else mask.to(queries.dtype)
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    return dropout(attention_weights(queries, keys, mask), seed, dropout_prob) @ values


def attention_weights(queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return (C, H, K, T): how much of each place is read by queries (C, H, K, d), given its keys (C, H, T, d)."""
    scores = queries @ keys.transpose(-2, -1) * (1 / math.sqrt(queries.shape[-1]))
    return torch.softmax(scores if mask is None else scores + mask, -1)


def mask_at(group: SequenceGroup, token_indices: torch.Tensor) -> torch.Tensor | None:
    """Return (C, 1, 1 or K, T): the mask of those pieces of a group's rows, which lie row by row."""
    if group.mask is None or group.mask.shape[2] == 1:
        return group.mask
    places = (token_indices - group.start).view(group.num_sequences, -1) % group.length  # (C, K)
    rows = torch.arange(group.num_sequences, device=places.device)[:, None]
    return group.mask[rows, 0, places][:, None]


def offset_seed(seed: torch.Tensor | None, offset: int) -> torch.Tensor | None:
    return None if seed is None else seed + offset


class Layer(nn.Module):
    """Attention, then a feed-forward network; each is added to what came in, and the sum is normalised (post-norm)."""

    def __init__(self, config: LayerConfig, attention: Attention | None = None) -> None:
        super().__init__()
        self.dropout_prob = config.hidden_dropout_prob
        self.attention = attention or Attention(
            config.hidden_size, config.num_attention_heads, config.attention_probs_dropout_prob
        )
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.intermediate = nn.Linear(config.hidden_size, config.intermediate_size)
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(
        self, hidden_states: torch.Tensor, layout: BatchLayout, seeds: tuple[torch.Tensor, ...] | None = None
    ) -> torch.Tensor:
        first, *others = seeds or (None, None, None)
        return self._after_attention(hidden_states, self.attention(hidden_states, layout, first), *others)

    def forward_at(
        self,
        hidden_states: torch.Tensor,
        layout: BatchLayout,
        seeds: tuple[torch.Tensor, ...] | None,
        output_positions: OutputPositions,
    ) -> torch.Tensor:
        """Return (M, D): the same, of the wanted pieces only. They read all pieces of their row."""
        first, *others = seeds or (None, None, None)
        return self._after_attention(
            hidden_states[output_positions.token_indices],
            self.attention.forward_at(hidden_states, layout, first, output_positions),
            *others,
        )

    def forward_with_cache(
        self, hidden_states: torch.Tensor, layout: BatchLayout, cache: KeyValueCache | None
    ) -> tuple[torch.Tensor, KeyValueCache]:
        """Return (N, D): the same of pieces that go on behind others; and keys and values of all."""
        read, kept = self.attention.forward_with_cache(hidden_states, layout, cache)
        return self._after_attention(hidden_states, read, None, None), kept

    def _after_attention(
        self,
        hidden_states: torch.Tensor,
        attention_output: torch.Tensor,
        attention_seed: torch.Tensor | None,
        feed_forward_seed: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return what follows attention, of pieces that have read."""
        return self._add_feed_forward(
            self._add_attention(hidden_states, attention_output, self.attention, self.attention_norm, attention_seed),
            feed_forward_seed,
        )

    def _add_attention(
        self,
        hidden_states: torch.Tensor,
        attention_output: torch.Tensor,
        attention: Attention,
        norm: nn.LayerNorm,
        seed: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return (N, D): the values and what they read by an attention, normalised."""
        if seed is None and can_fuse(hidden_states):
            return norm(fused_linear(attention_output, attention.out, hidden_states))
        return norm(hidden_states + dropout(apply_linear(attention_output, attention.out), seed, self.dropout_prob))

    def _add_feed_forward(self, hidden_states: torch.Tensor, seed: torch.Tensor | None) -> torch.Tensor:
        """Return (N, D): the values and what the feed-forward network makes of them, normalised."""
        if seed is None and can_fuse(hidden_states):
            return self.norm(fused_linear(self._activate_intermediate(hidden_states), self.output, hidden_states))
        return self.norm(hidden_states + dropout(self._feed_forward(hidden_states), seed, self.dropout_prob))

    def _feed_forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        inner, outer = self.intermediate, self.output
        if self.activation is F.gelu and torch.is_grad_enabled() and use_custom_kernels(hidden_states):
            weights = (inner.weight, inner.bias, outer.weight, outer.bias)
            return GeluFeedForward.apply(hidden_states, *weights)  # type: ignore[no-untyped-call]
        return apply_linear(self._activate_intermediate(hidden_states), outer)

    def _activate_intermediate(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return (N, I): the inner values."""
        if self.activation is F.gelu and can_fuse(hidden_states):
            return fused_linear(hidden_states, self.intermediate, activation="gelu")
        return self.activation(apply_linear(hidden_states, self.intermediate))


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What one layer is made of."""

    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
