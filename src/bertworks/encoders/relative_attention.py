"""XLNet's attention and layer: hidden states, relative positions, segments and a memory in, hidden states out.

N tokens, D hidden size, H heads, d = D / H. A group has C sequences of T positions with a memory of M positions before
each, so that tokens attend to S = M + T positions at L = S + T distances. K queries of a sequence, R in all. P tokens
whose output is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from bertworks.encoders.dropout import dropout
from bertworks.encoders.encoded import BatchLayout, OutputPositions, SequenceGroup
from bertworks.encoders.layers import (
    NO_SEEDS,
    Layer,
    LayerConfig,
    LayerSeeds,
    attend,
    attention_weights,
    mask_at,
    offset_seed,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeLayout(BatchLayout):
    """The layout of a batch for relative attention. The masks of groups cover S positions.

    token_type_ids        (N,) the segment of each token
    distance_embeddings   (L, D) of the distances of the longest sequence, from the farthest before to the last after
    memory                (B, M, D) the inputs of the current layer at the positions before the batch, if any
    """

    token_type_ids: torch.Tensor
    distance_embeddings: torch.Tensor
    memory: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionContext:
    """What the tokens of a group attend to.

    keys, values     (C, H, S, d)
    distance_keys    (H, d, L)
    token_type_ids   (C, S)
    """

    keys: torch.Tensor
    values: torch.Tensor
    distance_keys: torch.Tensor
    token_type_ids: torch.Tensor


@dataclass(frozen=True, slots=True)
class QueryStream:
    """The positions to predict, which are the queries of the second stream, and the masks of what they attend to."""

    output_positions: OutputPositions
    groups: tuple[SequenceGroup, ...]


def make_distance_embeddings(max_length: int, num_memory: int, table: torch.Tensor) -> torch.Tensor:
    """Return (L, D): sinusoids of the distances from M + T down to 1 - T, with device and dtype of `table` (V, D)."""
    hidden_size = table.shape[1]
    distances = torch.arange(num_memory + max_length, -max_length, -1, device=table.device, dtype=torch.float32)
    periods = 10_000.0 ** (torch.arange(0, hidden_size, 2, device=table.device, dtype=torch.float32) / hidden_size)
    angles = distances[:, None] * (1 / periods)
    return torch.cat([angles.sin(), angles.cos()], 1).to(table.dtype)


class RelativeAttention(nn.Module):
    """Attention with scores of content, distance and segment. Linear maps have no bias, but the queries of each score
    have one. The parameters have transformers' shapes."""

    def __init__(self, hidden_size: int, num_heads: int, dropout_prob: float) -> None:
        super().__init__()
        self.dropout_prob = dropout_prob
        heads = (num_heads, hidden_size // num_heads)
        self.query, self.key, self.value, self.distance, self.out = (
            nn.Parameter(torch.empty(hidden_size, *heads)) for _ in range(5)
        )
        self.content_bias, self.distance_bias, self.segment_bias = (nn.Parameter(torch.empty(heads)) for _ in range(3))
        self.segment_embeddings = nn.Parameter(torch.empty(2, *heads))  # for the same segment, for another one

    def forward(self, x: torch.Tensor, layout: RelativeLayout, seed: torch.Tensor | None) -> torch.Tensor:
        """Return the output (N, D) of all tokens (N, D)."""
        return self.attend(x, self.project_contexts(x, layout), layout.groups, seed)

    def forward_at(
        self, x: torch.Tensor, layout: RelativeLayout, seed: torch.Tensor | None, outputs: OutputPositions
    ) -> torch.Tensor:
        """Return the output (P, D) of the tokens whose output is needed; they attend to all tokens (N, D)."""
        queries = x[outputs.padded_indices]
        return self.attend(queries, self.project_contexts(x, layout), layout.groups, seed, outputs)[outputs.order]

    def project_contexts(self, x: torch.Tensor, layout: RelativeLayout) -> list[AttentionContext]:
        """Return what tokens (N, D) attend to, for each group. With a memory there is one group."""
        token_type_ids, num_memory = layout.token_type_ids, 0
        if layout.memory is not None:
            num_sequences, num_memory, hidden_size = layout.memory.shape
            x = torch.cat([layout.memory, x.view(num_sequences, -1, hidden_size)], 1).flatten(0, 1)
            memory_types = token_type_ids.new_zeros(num_sequences, num_memory)
            token_type_ids = torch.cat([memory_types, token_type_ids.view(num_sequences, -1)], 1).flatten()
        keys, values = x @ self.key.flatten(1), x @ self.value.flatten(1)
        heads = self.query.shape[1:]
        distance_keys = (layout.distance_embeddings @ self.distance.flatten(1)).view(-1, *heads).permute(1, 2, 0)
        max_length = (len(layout.distance_embeddings) - num_memory) // 2
        contexts = []
        for group in layout.groups:
            length = num_memory + group.length
            span = slice(group.start, group.start + group.num_sequences * length)
            shape = (group.num_sequences, length, *heads)
            start = max_length - group.length
            contexts.append(
                AttentionContext(
                    keys=keys[span].view(shape).transpose(1, 2),
                    values=values[span].view(shape).transpose(1, 2),
                    distance_keys=distance_keys[..., start : start + length + group.length],
                    token_type_ids=token_type_ids[span].view(group.num_sequences, length),
                )
            )
        return contexts

    def attend(
        self,
        x: torch.Tensor,
        contexts: Sequence[AttentionContext],
        groups: Sequence[SequenceGroup],
        seed: torch.Tensor | None,
        outputs: OutputPositions | None = None,
    ) -> torch.Tensor:
        """Return the output (R, D) of queries x (R, D): all tokens, or those of `outputs.padded_indices`."""
        heads = self.query.shape[1:]
        all_queries = x @ self.query.flatten(1)  # (R, D)
        group_contexts, start = [], 0
        for index, (group, context) in enumerate(zip(groups, contexts, strict=True)):
            count = group.length if outputs is None else outputs.counts[index]
            span = slice(start, start := start + group.num_sequences * count)
            queries = all_queries[span].view(group.num_sequences, count, *heads)  # (C, K, H, d)
            padded_indices = None if outputs is None else outputs.padded_indices[span]
            scores = self._position_and_segment_scores(queries, context, group, padded_indices)
            content_queries = (queries + self.content_bias).transpose(1, 2)
            group_seed = offset_seed(seed, group.start)
            group_contexts.append(
                attend(content_queries, context.keys, context.values, scores, group_seed, self.dropout_prob)
            )
        context_vectors = torch.cat(
            [result.transpose(1, 2).flatten(0, 1).flatten(1) for result in group_contexts]
        )  # (R, D)
        return context_vectors @ self.out.flatten(1).t()

    def attention_weights(self, x: torch.Tensor, layout: RelativeLayout) -> torch.Tensor:
        """Return the attention weights (C, H, T, S) of tokens (N, D) that are one group."""
        (group,), (context,) = layout.groups, self.project_contexts(x, layout)
        queries = (x @ self.query.flatten(1)).view(group.num_sequences, group.length, *self.query.shape[1:])
        content_queries = (queries + self.content_bias).transpose(1, 2)
        scores = self._position_and_segment_scores(queries, context, group, None)
        return attention_weights(content_queries, context.keys, scores)

    def _position_and_segment_scores(
        self,
        queries: torch.Tensor,
        context: AttentionContext,
        group: SequenceGroup,
        padded_indices: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return (C, H, K, S): the scores of distance and segment, -inf where attention is not allowed."""
        scale = 1 / math.sqrt(queries.shape[-1])
        distance_queries = (queries + self.distance_bias) * scale
        distance_scores = self._distance_scores(distance_queries, context.distance_keys, group, padded_indices)
        # A softmax does not change where all scores of a query change alike, so it is enough to add the difference
        # between the scores of another segment and of the same segment.
        differences = (queries + self.segment_bias) * (self.segment_embeddings[1] - self.segment_embeddings[0])
        length = context.token_type_ids.shape[1]
        query_types = context.token_type_ids[:, length - group.length :]
        if padded_indices is not None:
            query_types = query_types.gather(1, _positions_in_sequence(group, padded_indices))
        is_other_segment = (query_types[..., None] != context.token_type_ids[:, None])[:, None]  # (C, 1, K, S)
        segment_scores = (differences.sum(-1) * scale).transpose(1, 2)[..., None]  # (C, H, K, 1)
        scores = torch.addcmul(distance_scores, segment_scores, is_other_segment.to(segment_scores.dtype))
        mask = group.mask if padded_indices is None else mask_at(group, padded_indices)
        return scores if mask is None else scores + mask.to(scores.dtype)

    def _distance_scores(
        self,
        queries: torch.Tensor,
        distance_keys: torch.Tensor,
        group: SequenceGroup,
        padded_indices: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return (C, H, K, S): the scores of queries (C, K, H, d) with the keys of distances (H, d, L)."""
        num_sequences, count, num_heads, _ = queries.shape
        num_distances = distance_keys.shape[2]
        length = num_distances - group.length
        all_scores = torch.bmm(queries.permute(2, 0, 1, 3).flatten(1, 2), distance_keys)
        all_scores = all_scores.view(num_heads, num_sequences, count, num_distances)
        if padded_indices is None:
            # Position i attends to position j with distance number T - i + j: each row starts one earlier.
            shifted = all_scores.flatten(2)[..., count:].view(num_heads, num_sequences, count, num_distances - 1)
            return shifted[..., :length].transpose(0, 1)
        key_positions = torch.arange(length, device=queries.device)
        query_positions = _positions_in_sequence(group, padded_indices)[..., None]
        distances = group.length - query_positions + key_positions  # (C, K, S)
        return all_scores.gather(3, distances.expand(num_heads, -1, -1, -1)).transpose(0, 1)


def _positions_in_sequence(group: SequenceGroup, padded_indices: torch.Tensor) -> torch.Tensor:
    """Return (C, K): the positions of tokens that are ordered by sequence."""
    return (padded_indices - group.start).view(group.num_sequences, -1) % group.length


class RelativeLayer(Layer):
    """A layer of XLNet. A second stream of queries may be computed along with the first (two-stream attention)."""

    attention: RelativeAttention  # type: ignore[assignment]

    def __init__(self, config: LayerConfig) -> None:
        super().__init__(
            config,
            RelativeAttention(config.hidden_size, config.num_attention_heads, config.attention_probs_dropout_prob),  # type: ignore[arg-type]
        )

    def forward_streams(
        self,
        x: torch.Tensor,
        queries: torch.Tensor,
        layout: RelativeLayout,
        query_stream: QueryStream,
        seeds: LayerSeeds | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both streams: content (N, D), and queries (R, D), which do not attend to their own token."""
        weights_seed, attention_seed, output_seed, *query_seeds = seeds or (*NO_SEEDS, *NO_SEEDS)
        contexts = self.attention.project_contexts(x, layout)
        queries = self._update_queries(queries, contexts, query_stream, tuple(query_seeds))
        attention_output = self.attention.attend(x, contexts, layout.groups, weights_seed)
        x = self.attention_norm(self.add_attention(x, attention_output, attention_seed))
        return self.norm(self.add_feed_forward(x, output_seed)), queries

    def forward_query_stream(
        self,
        x: torch.Tensor,
        queries: torch.Tensor,
        layout: RelativeLayout,
        query_stream: QueryStream,
        seeds: LayerSeeds | None,
    ) -> torch.Tensor:
        """Return the stream of queries alone: all that is needed of the last layer."""
        query_seeds = seeds[3:] if seeds else NO_SEEDS
        return self._update_queries(queries, self.attention.project_contexts(x, layout), query_stream, query_seeds)

    def _update_queries(
        self,
        queries: torch.Tensor,
        contexts: Sequence[AttentionContext],
        query_stream: QueryStream,
        seeds: LayerSeeds,
    ) -> torch.Tensor:
        weights_seed, attention_seed, output_seed = seeds
        attention_output = self.attention.attend(
            queries, contexts, query_stream.groups, weights_seed, query_stream.output_positions
        )
        queries = self.attention_norm(self.add_attention(queries, attention_output, attention_seed))
        return self.norm(self.add_feed_forward(queries, output_seed))

    def add_attention(self, x: torch.Tensor, context: torch.Tensor, seed: torch.Tensor | None) -> torch.Tensor:
        """Return x + attention(x); the output of relative attention is projected already."""
        return x + dropout(context, seed, self.dropout_prob)

    def add_feed_forward(self, x: torch.Tensor, seed: torch.Tensor | None) -> torch.Tensor:
        return x + dropout(self._feed_forward(x), seed, self.dropout_prob)
