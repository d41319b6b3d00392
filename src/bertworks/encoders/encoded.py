"""What leaves an encoder, and how its rows of pieces lie: a Batch in, a Layout out; layers in, an Encoded out.

B rows of T places; N pieces (rows that are computed); D width; M pieces of which the last layer is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from bertworks.sampling.batch import Batch


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of a batch that are attended together: `count` rows of `length` places, from piece `start` on.

    `mask` (count, 1, 1 or length, length) is what is added to the scores, or None where all may read all.
    """

    start: int
    count: int
    length: int
    mask: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """What the rows of a decoder read besides their own: C rows of S places.

    Where there are more rows than that, as in a search, those that read the same source lie together.

    kept   for each layer of the decoder the keys and values of the source, each (C, heads, S, D / heads)
    mask   (C, 1, 1, S) what is added to the scores, or None where no row has padding
    """

    kept: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    mask: torch.Tensor | None

    def of_rows(self, rows: torch.Tensor) -> Source:
        """Return some of the sources."""
        kept = tuple((keys[rows], values[rows]) for keys, values in self.kept)
        return Source(kept, None if self.mask is None else self.mask[rows])


@dataclass(frozen=True, slots=True)
class Layout:
    """How the places of a batch lie in the (N, D) tensor that the layers work on.

    `index` (N,) names the place of each piece, counted through the batch (row * T + place); None where N = B * T and
    every place is computed, padding too. `starts` (B,) is the first piece of each row, `lengths` (B,) how many it has.
    `before` counts the pieces of each row that were read earlier, and are carried along; `source` is what the rows read
    besides their own.
    """

    groups: tuple[Group, ...]
    starts: torch.Tensor
    lengths: torch.Tensor
    index: torch.Tensor | None
    shape: tuple[int, int]
    before: int = field(default=0, kw_only=True)
    source: Source | None = field(default=None, kw_only=True)

    def pieces_at(self, places: torch.Tensor) -> torch.Tensor:
        """Return where the given places (row * T + place) lie among the pieces."""
        if self.index is None:
            return places
        width = self.shape[1]
        return self.starts[places // width] + places % width


@dataclass(frozen=True, slots=True)
class Carried:
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
    def num_rows(self) -> int:
        return len(self.layers[0][0]) if self.layers else 0

    def of_rows(self, first: int, count: int) -> Carried:
        """Return what belongs to some of the rows."""
        span = slice(first, first + count)
        return Carried(self.length, tuple((one[span], other[span]) for one, other in self.layers))

    def to(self, device: torch.device) -> Carried:
        """Return it on that device."""
        return Carried(self.length, tuple((one.to(device), other.to(device)) for one, other in self.layers))

    @staticmethod
    def joined(parts: Sequence[Carried]) -> Carried:
        """Return what several batches of rows carry as that of one; all have read equally far."""
        numbers = range(len(parts[0].layers))
        both = [[torch.cat([part.layers[number][side] for part in parts]) for side in (0, 1)] for number in numbers]
        return Carried(parts[0].length, tuple((one, other) for one, other in both))


@dataclass(frozen=True, slots=True)
class Wanted:
    """The pieces of which the last layer is wanted: the one that sums each row up, then those at the places asked.

    pieces   (M,) where they lie among the N
    lined    (R,) the same row by row, those of a group's rows each filled up to as many as its fullest row has
    counts   how many pieces each row of a group has in `lined`, by group
    order    (M,) where each of `pieces` lies in `lined`
    """

    pieces: torch.Tensor
    lined: torch.Tensor
    counts: tuple[int, ...]
    order: torch.Tensor


def wanted_of(layout: Layout, summaries: torch.Tensor, places: torch.Tensor) -> Wanted:
    """Return how the piece that sums each row up (B,) and the given places (row * T + place) are computed."""
    rows, width = layout.shape
    owners = torch.cat([torch.arange(rows, device=places.device), places // width])
    return lined_up(layout, torch.cat([summaries, layout.pieces_at(places)]), owners)


def lined_up(layout: Layout, pieces: torch.Tensor, owners: torch.Tensor) -> Wanted:
    """Return how pieces (M,) are computed, given the row of each (M,)."""
    by_row = torch.argsort(owners, stable=True)
    each = torch.bincount(owners, minlength=layout.shape[0])  # (B,) pieces of a row
    firsts = torch.cumsum(each, 0) - each
    slots = torch.empty_like(owners)
    slots[by_row] = torch.arange(len(owners), device=owners.device) - firsts[owners[by_row]]
    counts, begins, at, row = [], [], 0, 0
    for group in layout.groups:
        most = int(each[row : row + group.count].max())
        counts.append(most)
        begins.append(at + most * torch.arange(group.count, device=owners.device))
        at += most * group.count
        row += group.count
    order = torch.cat(begins)[owners] + slots
    # What a row is filled up with is computed and not looked at: its first piece.
    lined = torch.repeat_interleave(layout.starts, _repeats(layout, counts))
    return Wanted(pieces, lined.index_copy(0, order, pieces), tuple(counts), order)


def _repeats(layout: Layout, counts: list[int]) -> torch.Tensor:
    numbers = [count for group, count in zip(layout.groups, counts, strict=True) for _ in range(group.count)]
    return torch.tensor(numbers, device=layout.starts.device)


def layout_of(batch: Batch, reads: str | torch.Tensor = "both") -> Layout:
    """Choose how a batch is computed in which `reads` says who may read whom.

    A nearly full batch keeps its shape, so that a compiled layer always meets the same one; otherwise padding is left
    out, and rows of equal length that lie together are attended together without a mask.
    """
    rows, width = batch.ids.shape
    lengths = batch.lengths.tolist()
    if not isinstance(reads, str) or reads != "both" or sum(lengths) >= 0.9 * rows * width:
        mask = reading_mask(batch, reads)
        starts = torch.arange(rows, device=batch.ids.device) * width
        return Layout((Group(0, rows, width, mask),), starts, batch.lengths, None, (rows, width))
    groups = []
    at = 0
    row = 0
    while row < rows:
        count = 1
        while row + count < rows and lengths[row + count] == lengths[row]:
            count += 1
        groups.append(Group(at, count, lengths[row]))
        at += count * lengths[row]
        row += count
    places = torch.arange(width, device=batch.ids.device)
    index = torch.nonzero((places < batch.lengths[:, None]).flatten()).flatten()
    starts = torch.cumsum(batch.lengths, 0) - batch.lengths
    return Layout(tuple(groups), starts, batch.lengths, index, (rows, width))


def layout_onward(batch: Batch, before: int) -> Layout:
    """Return how full rows are computed that go on behind `before` places and read those, and their own to the left."""
    rows, width = batch.ids.shape
    places = torch.arange(before + width, device=batch.ids.device)
    ahead = places > places[before:, None]  # (T, before + T)
    mask = torch.zeros(1, 1, *ahead.shape, device=places.device).masked_fill_(ahead, float("-inf"))
    starts = torch.arange(rows, device=places.device) * width
    return Layout((Group(0, rows, width, mask),), starts, batch.lengths, None, (rows, width), before=before)


def reading_mask(batch: Batch, reads: str | torch.Tensor) -> torch.Tensor | None:
    """Return (B, 1, 1 or T, T): 0 where a place may be read, minus infinity where not; None if all may be.

    A place that may read nothing (padding under some masks) reads itself, so that no row of scores is empty.
    """
    width = batch.ids.shape[1]
    places = torch.arange(width, device=batch.ids.device)
    real = places < batch.lengths[:, None]  # (B, T)
    if isinstance(reads, str) and reads == "both":
        if bool(real.all()):
            return None
        allowed = real[:, None, None, :]
    else:
        given = reads if isinstance(reads, torch.Tensor) else (places <= places[:, None])[None]
        allowed = (given & real[:, None, :]) | torch.eye(width, dtype=torch.bool, device=places.device)
        allowed = allowed[:, None]
    return torch.zeros(allowed.shape, device=places.device).masked_fill_(~allowed, float("-inf"))


@dataclass(frozen=True, slots=True)
class Encoded:
    """All layers of an encoder, each (N, D), the embeddings first; the summary of each row (B, D); carried state.

    Where only some `places` (row * T + place) of the last layer were wanted, it is theirs, in their order.
    """

    layers: tuple[torch.Tensor, ...]
    summary: torch.Tensor | None
    layout: Layout
    state: object | None = None
    places: torch.Tensor | None = None

    @property
    def last(self) -> torch.Tensor:
        return self.layers[-1]

    def at(self, places: torch.Tensor, layer: int = -1) -> torch.Tensor:
        """Return (P, D): a layer at the given places (row * T + place)."""
        if self._is_partial(layer):
            assert places is self.places, "the last layer was computed at other places"
            return self.last
        return self.layers[layer][self.layout.pieces_at(places)]

    def padded(self, layer: int = -1) -> torch.Tensor:
        """Return (B, T, D): a layer in the shape of the batch, zero where there is padding."""
        rows, width = self.layout.shape
        values = self.layers[layer]
        assert not self._is_partial(layer), "the last layer was computed at some places only"
        if self.layout.index is None:
            padding = torch.arange(width, device=values.device) >= self.layout.lengths[:, None]  # (B, T)
            return values.view(rows, width, -1).masked_fill(padding[..., None], 0.0)
        spread = values.new_zeros(rows * width, values.shape[1])
        return spread.index_copy(0, self.layout.index, values).view(rows, width, -1)

    def _is_partial(self, layer: int) -> bool:
        return self.places is not None and layer in (-1, len(self.layers) - 1)
