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

from bertworks.encoders.dropout import drop
from bertworks.encoders.encoded import Group, Layout, Wanted
from bertworks.encoders.layers import Layer, LayerSizes, attended, mask_at, shares_of, shifted


@dataclass(frozen=True, slots=True)
class RelativeLayout(Layout):
    """How a batch lies, and what is asked of it by distance and segment. The masks of groups reach over S places.

    segments   (N,) the segment of each piece
    waves      (L, D) the distances of the widest row, from the farthest before a place to the farthest behind it
    memory     (B, M, D) what entered the layer that is passed for the pieces before those of the batch, if any
    """

    segments: torch.Tensor
    waves: torch.Tensor
    memory: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Readable:
    """What the pieces of a group can read.

    keys, values   (C, H, S, d)
    far            (H, d, L) the keys of distances
    segments       (C, S)
    """

    keys: torch.Tensor
    values: torch.Tensor
    far: torch.Tensor
    segments: torch.Tensor


@dataclass(frozen=True, slots=True)
class Asking:
    """The places that are asked about in the second stream: where they lie, and what each of them may read."""

    wanted: Wanted
    groups: tuple[Group, ...]


def waves_of(widest: int, num_remembered: int, table: torch.Tensor) -> torch.Tensor:
    """Return (L, D): sines and cosines of the distances from M + T down to 1 - T, in the kind of `table` (V, D)."""
    width = table.shape[1]
    distances = torch.arange(num_remembered + widest, -widest, -1, device=table.device, dtype=torch.float32)
    slow = 10_000.0 ** (torch.arange(0, width, 2, device=table.device, dtype=torch.float32) / width)
    turns = distances[:, None] * (1 / slow)
    return torch.cat([turns.sin(), turns.cos()], 1).to(table.dtype)


class RelativeAttention(nn.Module):
    """Attention whose scores add up content, distance, and whether two pieces share a segment. Nothing has a bias, but
    each of the three has one for its queries. The tensors have the shapes of transformers'."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        heads = (num_heads, width // num_heads)
        self.query, self.key, self.value, self.distance, self.out = (
            nn.Parameter(torch.empty(width, *heads)) for _ in range(5)
        )
        self.content_bias, self.distance_bias, self.segment_bias = (nn.Parameter(torch.empty(heads)) for _ in range(3))
        self.segments = nn.Parameter(torch.empty(2, *heads))  # a piece of the same segment, of another

    def forward(self, values: torch.Tensor, layout: RelativeLayout, seed: torch.Tensor | None) -> torch.Tensor:
        """Return (N, D): what every piece reads."""
        return self.read(values, self.readable(values, layout), layout.groups, seed)

    def at(
        self, values: torch.Tensor, layout: RelativeLayout, seed: torch.Tensor | None, wanted: Wanted
    ) -> torch.Tensor:
        """Return (M, D): what the wanted pieces read. All others are read, and do not read."""
        read = self.read(values[wanted.lined], self.readable(values, layout), layout.groups, seed, wanted)
        return read[wanted.order]

    def readable(self, values: torch.Tensor, layout: RelativeLayout) -> list[Readable]:
        """Return what can be read of (N, D), by group. Beside a memory there is one group."""
        segments, num_remembered = layout.segments, 0
        if layout.memory is not None:
            rows, num_remembered, width = layout.memory.shape
            values = torch.cat([layout.memory, values.view(rows, -1, width)], 1).flatten(0, 1)
            segments = torch.cat([segments.new_zeros(rows, num_remembered), segments.view(rows, -1)], 1).flatten()
        keys, read = values @ self.key.flatten(1), values @ self.value.flatten(1)
        heads = self.query.shape[1:]
        far = (layout.waves @ self.distance.flatten(1)).view(-1, *heads).permute(1, 2, 0)
        widest = (len(layout.waves) - num_remembered) // 2
        found = []
        for group in layout.groups:
            length = num_remembered + group.length
            own = slice(group.start, group.start + group.count * length)
            shape = (group.count, length, *heads)
            begin = widest - group.length
            found.append(
                Readable(
                    keys[own].view(shape).transpose(1, 2),
                    read[own].view(shape).transpose(1, 2),
                    far[..., begin : begin + length + group.length],
                    segments[own].view(group.count, length),
                )
            )
        return found

    def read(
        self,
        asking: torch.Tensor,
        readable: Sequence[Readable],
        groups: Sequence[Group],
        seed: torch.Tensor | None,
        wanted: Wanted | None = None,
    ) -> torch.Tensor:
        """Return (R, D): what pieces (R, D) read, all of them or those `wanted`, which lie as `wanted.lined` says."""
        heads = self.query.shape[1:]
        queries = asking @ self.query.flatten(1)  # (R, D)
        parts, at = [], 0
        for number, (group, own) in enumerate(zip(groups, readable, strict=True)):
            count = group.length if wanted is None else wanted.counts[number]
            here = slice(at, at := at + group.count * count)
            asked = queries[here].view(group.count, count, *heads)  # (C, K, H, d)
            lined = None if wanted is None else wanted.lined[here]
            scores = self._unlike_content(asked, own, group, lined)
            content = (asked + self.content_bias).transpose(1, 2)
            parts.append(attended(content, own.keys, own.values, scores, shifted(seed, group.start), self.dropout))
        read = torch.cat([part.transpose(1, 2).flatten(0, 1).flatten(1) for part in parts])  # (R, D)
        return read @ self.out.flatten(1).t()

    def shares(self, values: torch.Tensor, layout: RelativeLayout) -> torch.Tensor:
        """Return (C, H, T, S): how much of each place every place reads. The rows lie in one group."""
        (group,), (own,) = layout.groups, self.readable(values, layout)
        asked = (values @ self.query.flatten(1)).view(group.count, group.length, *self.query.shape[1:])
        content = (asked + self.content_bias).transpose(1, 2)
        return shares_of(content, own.keys, self._unlike_content(asked, own, group, None))

    def _unlike_content(
        self, asked: torch.Tensor, own: Readable, group: Group, lined: torch.Tensor | None
    ) -> torch.Tensor:
        """Return (C, H, K, S): the scores of distance and segment, and minus infinity where nothing may be read."""
        scale = 1 / math.sqrt(asked.shape[-1])
        near = (asked + self.distance_bias) * scale
        by_distance = self._by_distance(near, own.far, group, lined)
        # That a piece is of one's own segment adds the same to all scores of that segment, and only the difference to
        # the others counts.
        slopes = (asked + self.segment_bias) * (self.segments[1] - self.segments[0])
        length = own.segments.shape[1]
        of_asked = own.segments[:, length - group.length :]
        if lined is not None:
            of_asked = of_asked.gather(1, _places(group, lined))
        differs = (of_asked[..., None] != own.segments[:, None])[:, None]  # (C, 1, K, S)
        by_segment = (slopes.sum(-1) * scale).transpose(1, 2)[..., None]  # (C, H, K, 1)
        scores = torch.addcmul(by_distance, by_segment, differs.to(by_segment.dtype))
        mask = group.mask if lined is None else mask_at(group, lined)
        return scores if mask is None else scores + mask.to(scores.dtype)

    def _by_distance(
        self, near: torch.Tensor, far: torch.Tensor, group: Group, lined: torch.Tensor | None
    ) -> torch.Tensor:
        """Return (C, H, K, S): how queries (C, K, H, d) like each place by its distance (H, d, L)."""
        rows, count, num_heads, _ = near.shape
        num_distances = far.shape[2]
        length = num_distances - group.length
        all_scores = torch.bmm(near.permute(2, 0, 1, 3).flatten(1, 2), far)
        all_scores = all_scores.view(num_heads, rows, count, num_distances)
        if lined is None:
            # Place i reads place j at distance number T - i + j: each row begins one earlier than the one before.
            shifted_rows = all_scores.flatten(2)[..., count:].view(num_heads, rows, count, num_distances - 1)
            return shifted_rows[..., :length].transpose(0, 1)
        read = torch.arange(length, device=near.device)
        numbers = group.length - _places(group, lined)[..., None] + read  # (C, K, S)
        return all_scores.gather(3, numbers.expand(num_heads, -1, -1, -1)).transpose(0, 1)


def _places(group: Group, lined: torch.Tensor) -> torch.Tensor:
    """Return (C, K): the places in their rows of pieces that lie row by row."""
    return (lined - group.start).view(group.count, -1) % group.length


class RelativeLayer(Layer):
    """A layer of XLNet: relative attention, then a feed-forward network. Two streams may pass it side by side."""

    attention: RelativeAttention  # type: ignore[assignment]

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__(
            sizes,
            RelativeAttention(sizes.width, sizes.num_heads, sizes.attention_dropout),  # type: ignore[arg-type]
        )

    def streams(
        self,
        values: torch.Tensor,
        asked: torch.Tensor,
        layout: RelativeLayout,
        asking: Asking,
        seeds: tuple[torch.Tensor, ...] | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both streams: pieces (N, D) that know themselves, and places (R, D) that do not know their piece."""
        readable = self.attention.readable(values, layout)
        first, second, third, *more = seeds or (None,) * 6
        asked = self._answered(asked, readable, asking, tuple(more))
        read = self.attention.read(values, readable, layout.groups, first)
        return self._joined(values, read, second, third), asked

    def second_stream(
        self,
        values: torch.Tensor,
        asked: torch.Tensor,
        layout: RelativeLayout,
        asking: Asking,
        seeds: tuple[torch.Tensor, ...] | None,
    ) -> torch.Tensor:
        """Return the second stream alone: after the last layer nobody looks at the first."""
        more = seeds[3:] if seeds else (None,) * 3
        return self._answered(asked, self.attention.readable(values, layout), asking, more)

    def _answered(
        self,
        asked: torch.Tensor,
        readable: Sequence[Readable],
        asking: Asking,
        seeds: tuple[torch.Tensor | None, ...],
    ) -> torch.Tensor:
        first, second, third = seeds
        return self._joined(
            asked, self.attention.read(asked, readable, asking.groups, first, asking.wanted), second, third
        )

    def _joined(
        self, values: torch.Tensor, read: torch.Tensor, second: torch.Tensor | None, third: torch.Tensor | None
    ) -> torch.Tensor:
        values = self.attention_norm(values + drop(read, second, self.dropout))
        return self.norm(values + drop(self._feed_forward(values), third, self.dropout))
