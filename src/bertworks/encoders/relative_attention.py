"""The bricks of XLNet: pieces that read by distance, by segment, and what was remembered; tensors in, tensors out.

N pieces, D width, H heads, d = D / H. A group has C rows of T places; M remembered places lie before each row, so that
S = M + T can be read, at L = S + T distances. K pieces of a row ask, R of all rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from bertworks.encoders.dropout import dropout
from bertworks.encoders.encoded import BatchLayout, OutputPositions, SequenceGroup
from bertworks.encoders.layers import Layer, LayerConfig, attend, attention_weights, mask_at, offset_seed


@dataclass(frozen=True, slots=True)
class RelativeLayout(BatchLayout):
    """How a batch lies, and what is asked of it by distance and segment. The masks of groups reach over S places.

    segments   (N,) the segment of each piece
    waves      (L, D) the distances of the widest row, from the farthest before a place to the farthest behind it
    memory     (B, M, D) what entered the layer that is passed for the pieces before those of the batch, if any
    """

    token_type_ids: torch.Tensor
    distance_embeddings: torch.Tensor
    memory: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionContext:
    """What the pieces of a group can read.

    keys, values   (C, H, S, d)
    far            (H, d, L) the keys of distances
    segments       (C, S)
    """

    keys: torch.Tensor
    values: torch.Tensor
    distance_keys: torch.Tensor
    token_type_ids: torch.Tensor


@dataclass(frozen=True, slots=True)
class QueryStream:
    """The places that are asked about in the second stream: where they lie, and what each of them may read."""

    output_positions: OutputPositions
    groups: tuple[SequenceGroup, ...]


def make_distance_embeddings(max_length: int, num_memory: int, table: torch.Tensor) -> torch.Tensor:
    """Return (L, D): sines and cosines of the distances from M + T down to 1 - T, in the kind of `table` (V, D)."""
    width = table.shape[1]
    distances = torch.arange(num_memory + max_length, -max_length, -1, device=table.device, dtype=torch.float32)
    slow = 10_000.0 ** (torch.arange(0, width, 2, device=table.device, dtype=torch.float32) / width)
    turns = distances[:, None] * (1 / slow)
    return torch.cat([turns.sin(), turns.cos()], 1).to(table.dtype)


class RelativeAttention(nn.Module):
    """Attention whose scores add up content, distance, and whether two pieces share a segment. Nothing has a bias, but
    each of the three has one for its queries. The tensors have the shapes of transformers'."""

    def __init__(self, hidden_size: int, num_heads: int, dropout_prob: float) -> None:
        super().__init__()
        self.dropout_prob = dropout_prob
        heads = (num_heads, hidden_size // num_heads)
        self.query, self.key, self.value, self.distance, self.out = (
            nn.Parameter(torch.empty(hidden_size, *heads)) for _ in range(5)
        )
        self.content_bias, self.distance_bias, self.segment_bias = (nn.Parameter(torch.empty(heads)) for _ in range(3))
        self.segment_embeddings = nn.Parameter(torch.empty(2, *heads))  # a piece of the same segment, of another

    def forward(self, hidden_states: torch.Tensor, layout: RelativeLayout, seed: torch.Tensor | None) -> torch.Tensor:
        """Return (N, D): what every piece reads."""
        return self.attend(hidden_states, self.project_contexts(hidden_states, layout), layout.groups, seed)

    def forward_at(
        self,
        hidden_states: torch.Tensor,
        layout: RelativeLayout,
        seed: torch.Tensor | None,
        output_positions: OutputPositions,
    ) -> torch.Tensor:
        """Return (M, D): what the wanted pieces read. All others are read, and do not read."""
        read = self.attend(
            hidden_states[output_positions.padded_indices],
            self.project_contexts(hidden_states, layout),
            layout.groups,
            seed,
            output_positions,
        )
        return read[output_positions.order]

    def project_contexts(self, hidden_states: torch.Tensor, layout: RelativeLayout) -> list[AttentionContext]:
        """Return what can be read of (N, D), by group. Beside a memory there is one group."""
        segments, num_remembered = layout.token_type_ids, 0
        if layout.memory is not None:
            rows, num_remembered, width = layout.memory.shape
            hidden_states = torch.cat([layout.memory, hidden_states.view(rows, -1, width)], 1).flatten(0, 1)
            segments = torch.cat([segments.new_zeros(rows, num_remembered), segments.view(rows, -1)], 1).flatten()
        keys, read = hidden_states @ self.key.flatten(1), hidden_states @ self.value.flatten(1)
        heads = self.query.shape[1:]
        far = (layout.distance_embeddings @ self.distance.flatten(1)).view(-1, *heads).permute(1, 2, 0)
        widest = (len(layout.distance_embeddings) - num_remembered) // 2
        found = []
        for group in layout.groups:
            length = num_remembered + group.length
            own = slice(group.start, group.start + group.num_sequences * length)
            shape = (group.num_sequences, length, *heads)
            begin = widest - group.length
            found.append(
                AttentionContext(
                    keys[own].view(shape).transpose(1, 2),
                    read[own].view(shape).transpose(1, 2),
                    far[..., begin : begin + length + group.length],
                    segments[own].view(group.num_sequences, length),
                )
            )
        return found

    def attend(
        self,
        hidden_states: torch.Tensor,
        contexts: Sequence[AttentionContext],
        groups: Sequence[SequenceGroup],
        seed: torch.Tensor | None,
        output_positions: OutputPositions | None = None,
    ) -> torch.Tensor:
        """Return (R, D): what pieces (R, D) read, all of them or those `wanted`, which lie as `wanted.lined` says."""
        heads = self.query.shape[1:]
        queries = hidden_states @ self.query.flatten(1)  # (R, D)
        parts, at = [], 0
        for number, (group, own) in enumerate(zip(groups, contexts, strict=True)):
            count = group.length if output_positions is None else output_positions.counts[number]
            here = slice(at, at := at + group.num_sequences * count)
            asked = queries[here].view(group.num_sequences, count, *heads)  # (C, K, H, d)
            lined = None if output_positions is None else output_positions.padded_indices[here]
            scores = self._position_and_segment_scores(asked, own, group, lined)
            content = (asked + self.content_bias).transpose(1, 2)
            parts.append(
                attend(content, own.keys, own.values, scores, offset_seed(seed, group.start), self.dropout_prob)
            )
        read = torch.cat([part.transpose(1, 2).flatten(0, 1).flatten(1) for part in parts])  # (R, D)
        return read @ self.out.flatten(1).t()

    def attention_weights(self, hidden_states: torch.Tensor, layout: RelativeLayout) -> torch.Tensor:
        """Return (C, H, T, S): how much of each place every place reads. The rows lie in one group."""
        (group,), (own,) = layout.groups, self.project_contexts(hidden_states, layout)
        asked = (hidden_states @ self.query.flatten(1)).view(group.num_sequences, group.length, *self.query.shape[1:])
        content = (asked + self.content_bias).transpose(1, 2)
        return attention_weights(content, own.keys, self._position_and_segment_scores(asked, own, group, None))

    def _position_and_segment_scores(
        self,
        queries: torch.Tensor,
        context: AttentionContext,
        group: SequenceGroup,
        padded_indices: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return (C, H, K, S): the scores of distance and segment, and minus infinity where nothing may be read."""
        scale = 1 / math.sqrt(queries.shape[-1])
        near = (queries + self.distance_bias) * scale
        by_distance = self._distance_scores(near, context.distance_keys, group, padded_indices)
        # That a piece is of one's own segment adds the same to all scores of that segment, and only the difference to
        # the others counts.
        slopes = (queries + self.segment_bias) * (self.segment_embeddings[1] - self.segment_embeddings[0])
        length = context.token_type_ids.shape[1]
        of_asked = context.token_type_ids[:, length - group.length :]
        if padded_indices is not None:
            of_asked = of_asked.gather(1, _positions_in_sequence(group, padded_indices))
        differs = (of_asked[..., None] != context.token_type_ids[:, None])[:, None]  # (C, 1, K, S)
        by_segment = (slopes.sum(-1) * scale).transpose(1, 2)[..., None]  # (C, H, K, 1)
        scores = torch.addcmul(by_distance, by_segment, differs.to(by_segment.dtype))
        mask = group.mask if padded_indices is None else mask_at(group, padded_indices)
        return scores if mask is None else scores + mask.to(scores.dtype)

    def _distance_scores(
        self,
        queries: torch.Tensor,
        distance_keys: torch.Tensor,
        group: SequenceGroup,
        padded_indices: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return (C, H, K, S): how queries (C, K, H, d) like each place by its distance (H, d, L)."""
        rows, count, num_heads, _ = queries.shape
        num_distances = distance_keys.shape[2]
        length = num_distances - group.length
        all_scores = torch.bmm(queries.permute(2, 0, 1, 3).flatten(1, 2), distance_keys)
        all_scores = all_scores.view(num_heads, rows, count, num_distances)
        if padded_indices is None:
            # Place i reads place j at distance number T - i + j: each row begins one earlier than the one before.
            shifted_rows = all_scores.flatten(2)[..., count:].view(num_heads, rows, count, num_distances - 1)
            return shifted_rows[..., :length].transpose(0, 1)
        read = torch.arange(length, device=queries.device)
        numbers = group.length - _positions_in_sequence(group, padded_indices)[..., None] + read  # (C, K, S)
        return all_scores.gather(3, numbers.expand(num_heads, -1, -1, -1)).transpose(0, 1)


def _positions_in_sequence(group: SequenceGroup, padded_indices: torch.Tensor) -> torch.Tensor:
    """Return (C, K): the places in their rows of pieces that lie row by row."""
    return (padded_indices - group.start).view(group.num_sequences, -1) % group.length


class RelativeLayer(Layer):
    """A layer of XLNet: relative attention, then a feed-forward network. Two streams may pass it side by side."""

    attention: RelativeAttention  # type: ignore[assignment]

    def __init__(self, config: LayerConfig) -> None:
        super().__init__(
            config,
            RelativeAttention(config.hidden_size, config.num_attention_heads, config.attention_probs_dropout_prob),  # type: ignore[arg-type]
        )

    def forward_streams(
        self,
        hidden_states: torch.Tensor,
        query_states: torch.Tensor,
        layout: RelativeLayout,
        query_stream: QueryStream,
        seeds: tuple[torch.Tensor, ...] | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both streams: pieces (N, D) that know themselves, and places (R, D) that do not know their piece."""
        readable = self.attention.project_contexts(hidden_states, layout)
        first, second, third, *more = seeds or (None,) * 6
        query_states = self._update_query_stream(query_states, readable, query_stream, tuple(more))
        read = self.attention.attend(hidden_states, readable, layout.groups, first)
        return self._after_attention(hidden_states, read, second, third), query_states

    def forward_query_stream(
        self,
        hidden_states: torch.Tensor,
        query_states: torch.Tensor,
        layout: RelativeLayout,
        query_stream: QueryStream,
        seeds: tuple[torch.Tensor, ...] | None,
    ) -> torch.Tensor:
        """Return the second stream alone: after the last layer nobody looks at the first."""
        more = seeds[3:] if seeds else (None,) * 3
        return self._update_query_stream(
            query_states, self.attention.project_contexts(hidden_states, layout), query_stream, more
        )

    def _update_query_stream(
        self,
        query_states: torch.Tensor,
        contexts: Sequence[AttentionContext],
        query_stream: QueryStream,
        seeds: tuple[torch.Tensor | None, ...],
    ) -> torch.Tensor:
        first, second, third = seeds
        return self._after_attention(
            query_states,
            self.attention.attend(query_states, contexts, query_stream.groups, first, query_stream.output_positions),
            second,
            third,
        )

    def _after_attention(
        self,
        hidden_states: torch.Tensor,
        attention_output: torch.Tensor,
        attention_seed: torch.Tensor | None,
        feed_forward_seed: torch.Tensor | None,
    ) -> torch.Tensor:
        hidden_states = self.attention_norm(
            hidden_states + dropout(attention_output, attention_seed, self.dropout_prob)
        )
        return self.norm(
            hidden_states + dropout(self._feed_forward(hidden_states), feed_forward_seed, self.dropout_prob)
        )
