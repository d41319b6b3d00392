"""Attention with rotary positions, global or local: hidden states and a RotaryLayout in, context vectors out.

Queries and keys are rotated by angles that grow with their position, so that a score depends on the distance of the two
tokens. Positions are counted in each sequence, also where sequences are packed without padding. With local attention a
token attends to `reach` positions to each side. Long sequences are then computed in blocks of `reach` queries, each
with the keys of three blocks: time and memory grow with the length, not with its square.

N tokens, D hidden size, H heads, d = D / H. A group has C sequences of T positions, in n blocks of W.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F  # noqa: N812

from bertworks.encoders.encoded import BatchLayout, OutputPositions, SequenceGroup, create_local_mask
from bertworks.encoders.kernels import Rotate, rotate_in_place
from bertworks.encoders.layers import Attention, attend, merge_heads
from bertworks.encoders.linear import use_custom_kernels

# From so many blocks on a sequence is computed in blocks: each attends to three, and a mask of all pairs is not needed.
_MIN_BLOCKS = 6
# Up to this length our kernel, which keeps all attention weights, is used in training without dropout; then torch's.
_MAX_KERNEL_LENGTH = 512


@dataclass(frozen=True, slots=True)
class Rotation:
    """The cosines and sines of the angles of tokens, each (N, 1, d / 2)."""

    cosines: torch.Tensor
    sines: torch.Tensor

    def select(self, token_indices: torch.Tensor) -> Rotation:
        """Return the rotation of some tokens."""
        return Rotation(self.cosines[token_indices], self.sines[token_indices])


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryLayout(BatchLayout):
    """The layout of a batch with the rotation of its tokens, for global attention; `local` is for local attention."""

    rotation: Rotation
    local: RotaryLayout | None = None


def rotation_angles(num_positions: int, head_size: int, theta: float, device: torch.device) -> torch.Tensor:
    """Return (T, d / 2): the angle of each position in each plane; the slowest has a period of about 2 pi theta."""
    frequencies = 1.0 / theta ** (torch.arange(0, head_size, 2, dtype=torch.float, device=device) / head_size)
    return torch.arange(num_positions, device=device)[:, None].float() * frequencies


def rotary_layout(layout: BatchLayout, head_size: int, thetas: tuple[float, float], reach: int) -> RotaryLayout:
    """Return a layout with rotations; `thetas` are those of global and of local attention."""
    device = layout.lengths.device
    num_sequences, length = layout.shape
    positions = torch.arange(length, device=device).repeat(num_sequences) if layout.index is None else layout.index
    rotations = []
    for theta in thetas:
        angles = rotation_angles(length, head_size, theta, device)
        rotations.append(Rotation(*(table[positions % length, None] for table in (angles.cos(), angles.sin()))))
    values = {part.name: getattr(layout, part.name) for part in fields(BatchLayout)}
    local = RotaryLayout(**values, rotation=rotations[1])
    padding = layout.padding
    if padding is not None:
        padding = replace(padding, groups=tuple(_limit_reach(group, reach, device) for group in padding.groups))
    groups = tuple(_limit_reach(group, reach, device) for group in layout.groups)
    return RotaryLayout(**values, rotation=rotations[0], local=replace(local, groups=groups, padding=padding))


def _limit_reach(group: SequenceGroup, reach: int, device: torch.device) -> SequenceGroup:
    """Return a group with local attention."""
    if group.length <= reach + 1:
        return group
    mask = torch.zeros(1, 1, 1, group.length, device=device) if group.mask is None else group.mask
    if reach and group.length >= _MIN_BLOCKS * reach and mask.shape[2] == 1:
        return replace(group, mask=mask, reach=reach)
    positions = torch.arange(group.length, device=device)
    return replace(group, mask=create_local_mask(mask, positions[:, None], positions, reach))


class RotaryAttention(Attention):
    """Attention with rotary positions and without biases. Whether it is global or local follows from the layout."""

    def __init__(self, hidden_size: int, num_heads: int, dropout_prob: float) -> None:
        super().__init__(hidden_size, num_heads, dropout_prob, bias=False)

    def forward_at(
        self, x: torch.Tensor, layout: BatchLayout, seed: torch.Tensor | None, outputs: OutputPositions
    ) -> torch.Tensor:
        """Return the context vectors of the tokens whose output is needed; they attend to all tokens (N, D)."""
        return super().forward_at(x, layout, seed if self.dropout_prob else None, outputs)

    def _attend(self, query_key_value: torch.Tensor, group: SequenceGroup, seed: torch.Tensor | None) -> torch.Tensor:
        if not self.dropout_prob and group.length > _MAX_KERNEL_LENGTH:
            seed = None
        if group.reach is None:
            return super()._attend(query_key_value, group, seed)
        seed = seed if self.dropout_prob else None
        queries, keys, values = self._split_heads(query_key_value, group, 3)
        queries = _split_blocks(queries, group.reach, 0)
        keys, values = (_split_blocks(part, group.reach, 1) for part in (keys, values))
        context = attend(queries, keys, values, _block_mask(group), seed, self.dropout_prob)  # (C * n, H, W, d)
        context = context.view(group.num_sequences, -1, *context.shape[1:]).transpose(1, 2).flatten(2, 3)
        return merge_heads(context[:, :, : group.length])

    def _project(self, x: torch.Tensor, layout: BatchLayout) -> torch.Tensor:
        assert isinstance(layout, RotaryLayout)
        return rotate(super()._project(x, layout), layout.rotation, 2 * self.num_heads)

    def _project_queries(self, x: torch.Tensor, layout: BatchLayout, token_indices: torch.Tensor) -> torch.Tensor:
        assert isinstance(layout, RotaryLayout)
        queries = super()._project_queries(x, layout, token_indices)
        return rotate(queries, layout.rotation.select(token_indices), self.num_heads)

    def _project_keys_values(self, x: torch.Tensor, layout: BatchLayout) -> torch.Tensor:
        assert isinstance(layout, RotaryLayout)
        return rotate(super()._project_keys_values(x, layout), layout.rotation, self.num_heads)


def rotate(vectors: torch.Tensor, rotation: Rotation, num_heads: int) -> torch.Tensor:
    """Return vectors (N, …) whose first `num_heads` heads are rotated; where possible in place."""
    cosines, sines = rotation.cosines, rotation.sines
    if use_custom_kernels():
        if torch.is_grad_enabled():
            return Rotate.apply(vectors, cosines, sines, num_heads)  # type: ignore[no-untyped-call]
        return rotate_in_place(vectors, cosines, sines, num_heads)
    heads = vectors.view(len(vectors), -1, 2 * cosines.shape[-1])  # (N, …, d)
    x, y = heads[:, :num_heads].chunk(2, -1)
    rotated = torch.cat([x * cosines - y * sines, y * cosines + x * sines], -1).to(vectors.dtype)
    return torch.cat([rotated, heads[:, num_heads:]], 1).flatten(1)


def _split_blocks(values: torch.Tensor, size: int, num_neighbors: int) -> torch.Tensor:
    """Return (C * n, H, (1 + 2 * num_neighbors) * W, d) of (C, H, T, d): blocks of W, each with its neighbors."""
    num_blocks = -(-values.shape[2] // size)
    border = num_neighbors * size
    values = F.pad(values, (0, 0, border, num_blocks * size - values.shape[2] + border))
    blocks = values.view(*values.shape[:2], -1, size, values.shape[3])  # (C, H, n + 2 * num_neighbors, W, d)
    parts = [blocks[:, :, first : first + num_blocks] for first in range(2 * num_neighbors + 1)]
    return torch.cat(parts, 3).transpose(1, 2).flatten(0, 1)


def _block_mask(group: SequenceGroup) -> torch.Tensor:
    """Return (C * n, 1, W, 3W): the additive mask of each block."""
    assert group.reach is not None
    assert group.mask is not None
    size, length = group.reach, group.length
    num_blocks = -(-length // size)
    starts = torch.arange(num_blocks, device=group.mask.device)[:, None, None] * size  # (n, 1, 1)
    offsets = torch.arange(-size, 2 * size, device=starts.device)
    keys = starts + offsets  # (n, 1, 3W)
    is_inside = (keys >= 0) & (keys < length)
    mask = group.mask[:, 0, 0, keys.clamp(0, length - 1)].masked_fill(~is_inside, float("-inf"))  # (C or 1, n, 1, 3W)
    mask = create_local_mask(mask, starts + offsets[size : 2 * size, None], keys, group.reach)  # (C or 1, n, W, 3W)
    return mask.expand(group.num_sequences, -1, -1, -1).flatten(0, 1)[:, None]
