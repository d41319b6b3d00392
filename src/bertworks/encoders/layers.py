"""Attention and the Transformer layer: hidden states in, hidden states out.

N tokens, D hidden size, H heads, d = D / H, I intermediate size. A group of C sequences has T positions each. M tokens
whose output is needed, at most K of a sequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from bertworks.encoders.dropout import dropout, dropout_mask
from bertworks.encoders.encoded import BatchLayout, OutputPositions, SequenceGroup, create_local_mask
from bertworks.encoders.kernels import DropoutAttention, GeluFeedForward, softmax
from bertworks.encoders.linear import apply_linear, can_fuse, fused_linear, use_custom_kernels

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_python": F.gelu,
    "gelu_new": lambda values: F.gelu(values, approximate="tanh"),
    "gelu_pytorch_tanh": lambda values: F.gelu(values, approximate="tanh"),
    "gelu_fast": lambda values: F.gelu(values, approximate="tanh"),
    "quick_gelu": lambda values: values * torch.sigmoid(1.702 * values),
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
    "mish": F.mish,
    "sigmoid": torch.sigmoid,
    "linear": lambda values: values,
    "tanh": torch.tanh,
}

# Lengths at which batched matmuls with a softmax are faster in bf16 than torch's fused attention, by a quarter to a
# half. That of shorter sequences is faster in fp32.
_MIN_BF16_LENGTH, _MAX_BF16_LENGTH = 16, 256

# The keys and values of a layer, each (C, H, T, d).
KeyValueCache = tuple[torch.Tensor, torch.Tensor]
# The seeds of a layer: of the attention weights, of the attention's output, of the feed-forward network's output.
LayerSeeds = tuple[torch.Tensor | None, ...]
NO_SEEDS: LayerSeeds = (None, None, None)


@dataclass(frozen=True, slots=True)
class DropoutSeeds:
    """The seeds of dropout in a step: one number, from which each dropout of the network derives its own."""

    base: torch.Tensor

    def seed_for(self, index: int) -> torch.Tensor:
        """Return the seed of dropout number `index`; a large odd stride keeps the seeds apart."""
        return self.base + torch.tensor(index * 0x3C6EF35 % 2**31, dtype=torch.int32, device=self.base.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """The config of one Transformer layer."""

    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12


class Attention(nn.Module):
    """Multi-head self-attention. One matrix gives queries, keys and values; the caller applies the projection `out`."""

    def __init__(self, hidden_size: int, num_heads: int, dropout_prob: float, bias: bool = True) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout_prob = dropout_prob
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size, bias=bias)
        self.out = nn.Linear(hidden_size, hidden_size, bias=bias)

    def forward(self, x: torch.Tensor, layout: BatchLayout, seed: torch.Tensor | None) -> torch.Tensor:
        """Return the context vectors (N, D) of all tokens (N, D), before the projection `out`."""
        query_key_value = self._project(x, layout)  # (N, 3D)
        padding = layout.padding
        if padding is not None and query_key_value.dtype == torch.bfloat16:
            padded = query_key_value.index_select(0, padding.index)  # (R, 3D)
            contexts = [self._attend(padded[group.tokens], group, None) for group in padding.groups]
            return torch.cat(contexts).index_select(0, padding.order)
        return layout.join_groups(
            [
                self._attend(query_key_value[group.tokens], group, offset_seed(seed, group.start))
                for group in layout.groups
            ]
        )

    def _attend(self, query_key_value: torch.Tensor, group: SequenceGroup, seed: torch.Tensor | None) -> torch.Tensor:
        if seed is not None and use_custom_kernels():
            size = torch.Size((group.num_sequences, self.num_heads, group.length, group.length))
            shape = (group.num_sequences, group.length, self.num_heads)
            dropout_args = None
            if self.dropout_prob:
                dropout_args = (dropout_mask(size, seed, self.dropout_prob), self.dropout_prob)
            return DropoutAttention.apply(query_key_value, group.bias, shape, group.mask, dropout_args)  # type: ignore[no-untyped-call]
        queries, keys, values = self._split_heads(query_key_value, group, 3)
        context = attend(queries, keys, values, score_terms(group), seed, self.dropout_prob)
        return merge_heads(context)

    def forward_at(
        self, x: torch.Tensor, layout: BatchLayout, seed: torch.Tensor | None, outputs: OutputPositions
    ) -> torch.Tensor:
        """Return the context vectors (M, D) of the tokens whose output is needed; they attend to all tokens (N, D)."""
        hidden_size = x.shape[1]
        queries = self._project_queries(x, layout, outputs.padded_indices)
        key_value = self._project_keys_values(x, layout)  # (N, 2D)
        contexts, start = [], 0
        for group, count in zip(layout.groups, outputs.counts, strict=True):
            span = slice(start, start := start + group.num_sequences * count)
            keys, values = self._split_heads(key_value[group.tokens], group, 2)
            terms = score_terms(group, outputs.padded_indices[span])
            shape = (group.num_sequences, count, self.num_heads, hidden_size // self.num_heads)
            group_queries = queries[span].view(shape).transpose(1, 2)  # (C, H, K, d)
            context = attend(group_queries, keys, values, terms, offset_seed(seed, group.start), self.dropout_prob)
            contexts.append(merge_heads(context))
        return torch.cat(contexts)[outputs.order]

    def attention_weights(self, x: torch.Tensor, layout: BatchLayout) -> torch.Tensor:
        """Return the attention weights (C, H, T, T) of tokens (N, D) that are one group."""
        (group,) = layout.groups
        queries, keys, _ = self._split_heads(self._project(x, layout), group, 3)
        return attention_weights(queries, keys, score_terms(group))

    def forward_with_cache(
        self, x: torch.Tensor, layout: BatchLayout, cache: KeyValueCache | None
    ) -> tuple[torch.Tensor, KeyValueCache]:
        """Return the context vectors (N, D) of tokens that also attend to the cache, and the extended cache."""
        (group,) = layout.groups
        queries, keys, values = self._split_heads(self._project(x, layout), group, 3)
        if cache is not None:
            keys, values = torch.cat([cache[0], keys], 2), torch.cat([cache[1], values], 2)
        context = attend(queries, keys, values, group.mask, None, self.dropout_prob)
        return merge_heads(context), (keys, values)

    def _project(self, x: torch.Tensor, layout: BatchLayout) -> torch.Tensor:
        """Return (N, 3D): queries, keys and values of all tokens."""
        return apply_linear(x, self.query_key_value)

    def _project_queries(self, x: torch.Tensor, layout: BatchLayout, token_indices: torch.Tensor) -> torch.Tensor:
        """Return (R, D): the queries of some tokens."""
        return apply_linear(x[token_indices], self.query_key_value, slice(x.shape[1]))

    def _project_keys_values(self, x: torch.Tensor, layout: BatchLayout) -> torch.Tensor:
        """Return (N, 2D): keys and values of all tokens."""
        return apply_linear(x, self.query_key_value, slice(x.shape[1], None))

    def _split_heads(self, projected: torch.Tensor, group: SequenceGroup, count: int) -> torch.Tensor:
        """Return `count` tensors (C, H, T, d) from (C * T, count * D)."""
        head_size = projected.shape[1] // (count * self.num_heads)
        shape = (group.num_sequences, group.length, count, self.num_heads, head_size)
        return projected.view(shape).permute(2, 0, 3, 1, 4)


def merge_heads(context: torch.Tensor) -> torch.Tensor:
    """Return (C * T, D) from (C, H, T, d)."""
    num_sequences, num_heads, length, head_size = context.shape
    return context.transpose(1, 2).reshape(num_sequences * length, num_heads * head_size)


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    seed: torch.Tensor | None,
    dropout_prob: float,
) -> torch.Tensor:
    """Return (C, H, K, d): scaled dot-product attention with an additive mask and dropout of the weights."""
    if seed is not None:
        weights = dropout(attention_weights(queries, keys, mask), seed, dropout_prob)
        return weights.to(values.dtype) @ values
    # A mask of another dtype than the queries silently gives wrong results in double precision.
    mask = None if mask is None else mask.to(queries.dtype)
    if queries.dtype == torch.bfloat16 and queries.device.type == "cpu":
        if _MIN_BF16_LENGTH <= keys.shape[2] <= _MAX_BF16_LENGTH:
            queries, keys, values = queries.contiguous(), keys.contiguous(), values.contiguous()
            return attention_weights(queries, keys, mask) @ values
        if keys.shape[2] < _MIN_BF16_LENGTH:
            mask = None if mask is None else mask.float()
            fp32 = F.scaled_dot_product_attention(queries.float(), keys.float(), values.float(), attn_mask=mask)
            return fp32.to(queries.dtype)
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)


def attention_weights(queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return (C, H, K, T): softmax(queries @ keys.T / sqrt(d) + mask)."""
    scores = queries * (1 / math.sqrt(queries.shape[-1])) @ keys.transpose(-2, -1)
    return softmax(scores if mask is None else scores + mask.to(scores.dtype))


def mask_at(group: SequenceGroup, token_indices: torch.Tensor | None = None) -> torch.Tensor | None:
    """Return (C or 1, 1, 1 or K or T, T): the mask of a group, or of some of its tokens, ordered by sequence."""
    mask = group.mask
    if mask is None or (group.reach is None and (token_indices is None or mask.shape[2] == 1)):
        return mask
    if group.reach is not None:
        keys = torch.arange(group.length, device=mask.device)
        queries = keys[None] if token_indices is None else _positions_of(group, token_indices)
        return create_local_mask(mask, queries[:, None, :, None], keys, group.reach)
    assert token_indices is not None
    sequences = torch.arange(group.num_sequences, device=mask.device)[:, None]
    return mask.expand(group.num_sequences, -1, -1, -1)[sequences, 0, _positions_of(group, token_indices)][:, None]


def _positions_of(group: SequenceGroup, token_indices: torch.Tensor) -> torch.Tensor:
    """Return (C, K): the positions of tokens in their sequences."""
    return (token_indices - group.start).view(group.num_sequences, -1) % group.length


def score_terms(group: SequenceGroup, token_indices: torch.Tensor | None = None) -> torch.Tensor | None:
    """Return the mask and the bias of a group, or of some of its tokens: what is added to its attention scores."""
    mask = mask_at(group, token_indices)
    if group.bias is None:
        return mask
    bias = group.bias
    if token_indices is not None:
        bias = bias[0][:, _positions_of(group, token_indices)].transpose(0, 1)  # (C, H, K, T)
    return bias if mask is None else bias + mask


def offset_seed(seed: torch.Tensor | None, offset: int) -> torch.Tensor | None:
    return None if seed is None else seed + offset


class Layer(nn.Module):
    """A post-norm Transformer layer: attention and a feed-forward network, each with a residual connection."""

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

    def forward(self, x: torch.Tensor, layout: BatchLayout, seeds: LayerSeeds | None = None) -> torch.Tensor:
        """Return (N, D): x = norm(x + attention(x)), then x = norm(x + feed_forward(x))."""
        weights_seed, attention_seed, output_seed = seeds or NO_SEEDS
        context = self.attention(x, layout, weights_seed)
        x = self.attention_norm(self.add_attention(x, context, attention_seed))
        return self.norm(self.add_feed_forward(x, output_seed))

    def forward_at(
        self, x: torch.Tensor, layout: BatchLayout, seeds: LayerSeeds | None, outputs: OutputPositions
    ) -> torch.Tensor:
        """Return (M, D): the same for the tokens whose output is needed."""
        weights_seed, attention_seed, output_seed = seeds or NO_SEEDS
        residual = x[outputs.token_indices]
        context = self.attention.forward_at(x, layout, weights_seed, outputs)
        x = self.attention_norm(self.add_attention(residual, context, attention_seed))
        return self.norm(self.add_feed_forward(x, output_seed))

    def forward_with_cache(
        self, x: torch.Tensor, layout: BatchLayout, cache: KeyValueCache | None
    ) -> tuple[torch.Tensor, KeyValueCache]:
        """Return (N, D): the same for tokens that continue the cached ones; and the extended cache."""
        context, cache = self.attention.forward_with_cache(x, layout, cache)
        x = self.attention_norm(self.add_attention(x, context, None))
        return self.norm(self.add_feed_forward(x, None)), cache

    def attention_weights(self, x: torch.Tensor, layout: BatchLayout) -> torch.Tensor:
        """Return the attention weights (C, H, T, T) of the inputs (N, D) of this layer, which are one group."""
        return self.attention.attention_weights(x, layout)

    def add_attention(self, x: torch.Tensor, context: torch.Tensor, seed: torch.Tensor | None) -> torch.Tensor:
        """Return x + attention(x), given the context vectors of the attention."""
        return self.add_projection(x, context, self.attention.out, seed)

    def add_feed_forward(self, x: torch.Tensor, seed: torch.Tensor | None) -> torch.Tensor:
        """Return x + feed_forward(x), in one kernel after the activation where possible."""
        if seed is None and can_fuse(x):
            return fused_linear(self._activate_intermediate(x), self.output, x)
        return x + dropout(self._feed_forward(x), seed, self.dropout_prob)

    def add_projection(
        self, x: torch.Tensor, values: torch.Tensor, projection: nn.Linear, seed: torch.Tensor | None
    ) -> torch.Tensor:
        """Return x + dropout(projection(values)), in one kernel where possible."""
        if seed is None and can_fuse(x):
            return fused_linear(values, projection, x)
        return x + dropout(apply_linear(values, projection), seed, self.dropout_prob)

    def _feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return output(activation(intermediate(x)))."""
        if self.activation is F.gelu and torch.is_grad_enabled() and use_custom_kernels():
            weights = (self.intermediate.weight, self.intermediate.bias, self.output.weight, self.output.bias)
            return GeluFeedForward.apply(x, *weights)  # type: ignore[no-untyped-call]
        return apply_linear(self._activate_intermediate(x), self.output)

    def _activate_intermediate(self, x: torch.Tensor) -> torch.Tensor:
        """Return activation(intermediate(x)): (N, I)."""
        if self.activation is F.gelu and can_fuse(x):
            return fused_linear(x, self.intermediate, activation="gelu")
        return self.activation(apply_linear(x, self.intermediate))
