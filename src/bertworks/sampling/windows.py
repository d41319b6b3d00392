"""Long texts: the pieces of a text or a pair in, rows that fit a model out, every piece in at least one of them.

Of a pair the longer text slides under the whole of the other. Where even the shorter one takes more than half of a
row, both slide side by side, each in its half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from bertworks.errors import SettingsError
from bertworks.vocabulary.tokenizer import Cut, Tokenizer

Ints = npt.NDArray[np.int64]
ORDERS = ("given", "both")


@dataclass(frozen=True, slots=True)
class WindowRule:
    """How long texts are cut: rows of at most `length` places, neighbours with `overlap` pieces in common.

    With `truncate` there is one row, and what does not fit into it is left out and counted. `orders` says how a pair is
    read that has no order of its own: as it is given, or in both, for which a task takes the mean.
    """

    length: int = 512
    overlap: int = 64
    truncate: bool = False
    orders: str = "given"

    def __post_init__(self) -> None:
        if self.orders not in ORDERS:
            raise SettingsError(
                f"a pair cannot be read in the orders '{self.orders}'; choose one of: {', '.join(ORDERS)}"
            )
        if self.length < 8 or self.overlap < 0 or self.overlap * 4 > self.length:
            raise SettingsError(
                f"windows of {self.length} places with {self.overlap} in common cannot work; give at least 8 places, "
                f"and an overlap of at most a quarter of them"
            )


@dataclass(frozen=True, slots=True)
class Run:
    """Pieces of one text in a row: from its piece `first` on, `count` of them, at the row's place `place` and after."""

    first: int
    count: int
    place: int


@dataclass(frozen=True, slots=True)
class Window:
    """One row: ids and segments (T,), which pieces of each text stand in it, and how words outside the vocabulary are
    written, by their places."""

    ids: Ints
    segments: Ints
    runs: tuple[Run, ...]
    unknown: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Windows:
    """The rows of a text or pair, and how many pieces were left out because somebody asked for that."""

    rows: tuple[Window, ...]
    num_cut: int = 0

    def owners(self, text: int) -> Ints:
        """Return for each piece of a text the row in which it stands farthest from the edges: (P,)."""
        runs = [row.runs[text] for row in self.rows]
        owners = np.zeros(max(run.first + run.count for run in runs), dtype=np.int64)
        best = np.full(len(owners), -1, dtype=np.int64)
        for number, run in enumerate(runs):
            inside = np.arange(run.count)
            context = np.minimum(inside, inside[::-1])
            span = slice(run.first, run.first + run.count)
            better = context > best[span]
            owners[span][better] = number
            best[span][better] = context[better]
        return owners


def windows_of(tokenizer: Tokenizer, texts: Sequence[Cut], rule: WindowRule) -> Windows:
    """Return the rows of one text or of two."""
    room = rule.length - tokenizer.num_special(len(texts))
    lengths = [len(text) for text in texts]
    num_cut = 0
    if sum(lengths) <= room:
        stretches = [[(0, length)] for length in lengths]
    elif rule.truncate:
        kept = [min(length, own) for length, own in zip(lengths, _rooms(lengths, room), strict=True)]
        num_cut = sum(lengths) - sum(kept)
        stretches = [[(0, length)] for length in kept]
    else:
        rooms = _rooms(lengths, room)
        stretches = [_stretches(length, own, rule.overlap) for length, own in zip(lengths, rooms, strict=True)]
    return Windows(tuple(_row(tokenizer, texts, spans) for spans in _side_by_side(stretches)), num_cut)


def windows_in_orders(tokenizer: Tokenizer, texts: Sequence[Cut], rule: WindowRule) -> Windows:
    """Return the rows of one text, or of a pair in the orders that the rule says. The runs of a row are always in the
    order of the texts, wherever they stand."""
    found = windows_of(tokenizer, texts, rule)
    if rule.orders == "given" or len(texts) == 1:
        return found
    turned = windows_of(tokenizer, texts[::-1], rule).rows
    return Windows((*found.rows, *(replace(row, runs=row.runs[::-1]) for row in turned)), found.num_cut)


def _rooms(lengths: Sequence[int], room: int) -> list[int]:
    """Return how many pieces of each text a row has room for."""
    if len(lengths) == 1:
        return [room]
    shorter = min(*lengths, room // 2)
    longer_first = lengths[0] >= lengths[1]
    return [room - shorter, shorter] if longer_first else [shorter, room - shorter]


def _stretches(length: int, room: int, overlap: int) -> list[tuple[int, int]]:
    """Cut 0..length into stretches of at most `room`, neighbours with about `overlap` in common, all equally long."""
    if length <= room:
        return [(0, length)]
    step = max(1, room - min(overlap, room // 2))
    count = 1 + -(-(length - room) // step)
    return [((length - room) * number // (count - 1), room) for number in range(count)]


def _side_by_side(stretches: Sequence[Sequence[tuple[int, int]]]) -> list[list[tuple[int, int]]]:
    """Pair the stretches of two texts: as many rows as the one with more of them has, the other keeps pace."""
    count = max(map(len, stretches))
    return [[spans[number * len(spans) // count] for spans in stretches] for number in range(count)]


def _row(tokenizer: Tokenizer, texts: Sequence[Cut], spans: Sequence[tuple[int, int]]) -> Window:
    parts = [text.between(first, first + count) for text, (first, count) in zip(texts, spans, strict=True)]
    ids, segments, places = tokenizer.row(*(part.ids for part in parts))
    runs = tuple(Run(first, count, place) for (first, count), place in zip(spans, places, strict=True))
    unknown = {place + at: word for part, place in zip(parts, places, strict=True) for at, word in part.unknown.items()}
    return Window(ids, segments, runs, unknown)
