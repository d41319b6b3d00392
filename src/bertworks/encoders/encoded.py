"""What leaves an encoder, and how its rows of pieces lie: a Batch in, a Layout out; layers in, an Encoded out.

B rows of T places; N pieces (rows that are computed); D width; M pieces of which the last layer is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from bertworks.sampling.batch import Batch


@dataclass(frozen=True, slots=True)
class SequenceGroup:
    """Rows of a batch that are attended together: `count` rows of `length` places, from piece `start` on.

    `mask` (count, 1, 1 or length, length) is what is added to the scores, or None where all may read all.
    """

    start: int
    num_sequences: int
    length: int
    mask: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class CrossAttentionCache:
    """What the rows of a decoder read besides their own: C rows of S places.

    Where there are more rows than that, as in a search, those that read the same source lie together.

    kept   for each layer of the decoder the keys and values of the source, each (C, heads, S, D / heads)
    mask   (C, 1, 1, S) what is added to the scores, or None where no row has padding
    """

    keys_values: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    mask: torch.Tensor | None

    def select_sequences(self, indices: torch.Tensor) -> CrossAttentionCache:
        """Return some of the sources."""
        kept = tuple((keys[indices], values[indices]) for keys, values in self.keys_values)
        return CrossAttentionCache(kept, None if self.mask is None else self.mask[indices])


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """How the places of a batch lie in the (N, D) tensor that the layers work on.

    `index` (N,) names the place of each piece, counted through the batch (row * T + place); None where N = B * T and
    every place is computed, padding too. `starts` (B,) is the first piece of each row, `lengths` (B,) how many it has.
    `before` counts the pieces of each row that were read earlier, and are carried along; `source` is what the rows read
    besides their own.
    """

    groups: tuple[SequenceGroup, ...]
    starts: torch.Tensor
    lengths: torch.Tensor
    index: torch.Tensor | None
    shape: tuple[int, int]
    num_cached: int = field(default=0, kw_only=True)
    source_cache: CrossAttentionCache | None = field(default=None, kw_only=True)

    def token_indices(self, positions: torch.Tensor) -> torch.Tensor:
        """Return where the given places (row * T + place) lie among the pieces."""
        if self.index is None:
            return positions
        width = self.shape[1]
        return self.starts[positions // width] + positions % width


@dataclass(frozen=True, slots=True)
class EncoderState:
    """What pieces that were read leave for those behind them, in a model that reads to the left.

    length   how many places of each row were read
    layers   for each layer two tensors with a row for each of the batch's; empty before the first piece. Those of a
             Transformer are keys and values, each (B, heads, length, D / heads), an LSTM's its output and cells, each
             (B, cells), an XLNet's what entered the layer for the last M of them, (B, M, D), and how many of these
             are real, (B,)
    """

    length: int = 0
    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()

    @property
    def num_sequences(self) -> int:
        return len(self.layers[0][0]) if self.layers else 0

    def slice_sequences(self, first: int, num_sequences: int) -> EncoderState:
        """Return what belongs to some of the rows."""
        span = slice(first, first + num_sequences)
        return EncoderState(self.length, tuple((one[span], other[span]) for one, other in self.layers))

    def to(self, device: torch.device) -> EncoderState:
        """Return it on that device."""
        return EncoderState(self.length, tuple((one.to(device), other.to(device)) for one, other in self.layers))

    @staticmethod
    def concat(states: Sequence[EncoderState]) -> EncoderState:
        """Return what several batches of rows carry as that of one; all have read equally far."""
        numbers = range(len(states[0].layers))
        both = [[torch.cat([part.layers[number][side] for part in states]) for side in (0, 1)] for number in numbers]
        return EncoderState(states[0].length, tuple((one, other) for one, other in both))


@dataclass(frozen=True, slots=True)
class OutputPositions:
    """The pieces of which the last layer is wanted: the one that sums each row up, then those at the places asked.

    pieces   (M,) where they lie among the N
    lined    (R,) the same row by row, those of a group's rows each filled up to as many as its fullest row has
    counts   how many pieces each row of a group has in `lined`, by group
    order    (M,) where each of `pieces` lies in `lined`
    """

    token_indices: torch.Tensor
    padded_indices: torch.Tensor
    counts: tuple[int, ...]
    order: torch.Tensor


def select_output_positions(
    layout: BatchLayout, pooled_positions: torch.Tensor, positions: torch.Tensor
) -> OutputPositions:
    """Return how the piece that sums each row up (B,) and the given places (row * T + place) are computed."""
    rows, width = layout.shape
    owners = torch.cat([torch.arange(rows, device=positions.device), positions // width])
    return pad_output_positions(layout, torch.cat([pooled_positions, layout.token_indices(positions)]), owners)


def pad_output_positions(
    layout: BatchLayout, token_indices: torch.Tensor, sequence_indices: torch.Tensor
) -> OutputPositions:
    """Return how pieces (M,) are computed, given the row of each (M,)."""
    by_row = torch.argsort(sequence_indices, stable=True)
    each = torch.bincount(sequence_indices, minlength=layout.shape[0])  # (B,) pieces of a row
    firsts = torch.cumsum(each, 0) - each
    slots = torch.empty_like(sequence_indices)
    slots[by_row] = (
        torch.arange(len(sequence_indices), device=sequence_indices.device) - firsts[sequence_indices[by_row]]
    )
    counts, begins, at, row = [], [], 0, 0
    for group in layout.groups:
        most = int(each[row : row + group.num_sequences].max())
        counts.append(most)
        begins.append(at + most * torch.arange(group.num_sequences, device=sequence_indices.device))
        at += most * group.num_sequences
        row += group.num_sequences
    order = torch.cat(begins)[sequence_indices] + slots
    # What a row is filled up with is computed and not looked at: its first piece.
    lined = torch.repeat_interleave(layout.starts, _repeats(layout, counts))
    return OutputPositions(token_indices, lined.index_copy(0, order, token_indices), tuple(counts), order)


def _repeats(layout: BatchLayout, counts: list[int]) -> torch.Tensor:
    numbers = [count for group, count in zip(layout.groups, counts, strict=True) for _ in range(group.num_sequences)]
    return torch.tensor(numbers, device=layout.starts.device)


def create_layout(batch: Batch, attention: str | torch.Tensor = "bidirectional") -> BatchLayout:
    """Choose how a batch is computed in which `reads` says who may read whom.

    A nearly full batch keeps its shape, so that a compiled layer always meets the same one; otherwise padding is left
    out, and rows of equal length that lie together are attended together without a mask.
    """
    rows, width = batch.input_ids.shape
    lengths = batch.lengths.tolist()
    if not isinstance(attention, str) or attention != "bidirectional" or sum(lengths) >= 0.9 * rows * width:
        mask = create_attention_mask(batch, attention)
        starts = torch.arange(rows, device=batch.input_ids.device) * width
        return BatchLayout((SequenceGroup(0, rows, width, mask),), starts, batch.lengths, None, (rows, width))
    groups = []
    at = 0
    row = 0
    while row < rows:
        count = 1
        while row + count < rows and lengths[row + count] == lengths[row]:
            count += 1
        groups.append(SequenceGroup(at, count, lengths[row]))
        at += count * lengths[row]
        row += count
    places = torch.arange(width, device=batch.input_ids.device)
    index = torch.nonzero((places < batch.lengths[:, None]).flatten()).flatten()
    starts = torch.cumsum(batch.lengths, 0) - batch.lengths
    return BatchLayout(tuple(groups), starts, batch.lengths, index, (rows, width))


def create_layout_with_cache(batch: Batch, num_cached: int) -> BatchLayout:
    """Return how full rows are computed that go on behind `before` places and read those, and their own to the left."""
    rows, width = batch.input_ids.shape
    places = torch.arange(num_cached + width, device=batch.input_ids.device)
    ahead = places > places[num_cached:, None]  # (T, before + T)
    mask = torch.zeros(1, 1, *ahead.shape, device=places.device).masked_fill_(ahead, float("-inf"))
    starts = torch.arange(rows, device=places.device) * width
    return BatchLayout(
        (SequenceGroup(0, rows, width, mask),), starts, batch.lengths, None, (rows, width), num_cached=num_cached
    )


def create_attention_mask(batch: Batch, attention: str | torch.Tensor) -> torch.Tensor | None:
    """Return (B, 1, 1 or T, T): 0 where a place may be read, minus infinity where not; None if all may be.

    A place that may read nothing (padding under some masks) reads itself, so that no row of scores is empty.
    """
    width = batch.input_ids.shape[1]
    places = torch.arange(width, device=batch.input_ids.device)
    real = places < batch.lengths[:, None]  # (B, T)
    if isinstance(attention, str) and attention == "bidirectional":
        if bool(real.all()):
            return None
        allowed = real[:, None, None, :]
    else:
        given = attention if isinstance(attention, torch.Tensor) else (places <= places[:, None])[None]
        allowed = (given & real[:, None, :]) | torch.eye(width, dtype=torch.bool, device=places.device)
        allowed = allowed[:, None]
    return torch.zeros(allowed.shape, device=places.device).masked_fill_(~allowed, float("-inf"))


@dataclass(frozen=True, slots=True)
class Encoded:
    """All layers of an encoder, each (N, D), the embeddings first; the summary of each row (B, D); carried state.

    Where only some `places` (row * T + place) of the last layer were wanted, it is theirs, in their order.
    """

    hidden_states: tuple[torch.Tensor, ...]
    pooled: torch.Tensor | None
    layout: BatchLayout
    state: object | None = None
    positions: torch.Tensor | None = None

    @property
    def last_hidden_state(self) -> torch.Tensor:
        return self.hidden_states[-1]

    def gather(self, positions: torch.Tensor, layer: int = -1) -> torch.Tensor:
        """Return (P, D): a layer at the given places (row * T + place)."""
        if self._is_partial(layer):
            assert positions is self.positions, "the last layer was computed at other places"
            return self.last_hidden_state
        return self.hidden_states[layer][self.layout.token_indices(positions)]

    def to_padded(self, layer: int = -1) -> torch.Tensor:
        """Return (B, T, D): a layer in the shape of the batch, zero where there is padding."""
        rows, width = self.layout.shape
        values = self.hidden_states[layer]
        assert not self._is_partial(layer), "the last layer was computed at some places only"
        if self.layout.index is None:
            padding = torch.arange(width, device=values.device) >= self.layout.lengths[:, None]  # (B, T)
            return values.view(rows, width, -1).masked_fill(padding[..., None], 0.0)
        spread = values.new_zeros(rows * width, values.shape[1])
        return spread.index_copy(0, self.layout.index, values).view(rows, width, -1)

    def _is_partial(self, layer: int) -> bool:
        return self.positions is not None and layer in (-1, len(self.hidden_states) - 1)
