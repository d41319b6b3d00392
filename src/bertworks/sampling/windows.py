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
from bertworks.vocabulary.tokenizer import TokenizedText, Tokenizer

Ints = npt.NDArray[np.int64]
PAIR_ORDERS = ("given", "both")


@dataclass(frozen=True, slots=True)
class WindowRule:
    """How long texts are cut: rows of at most `length` places, neighbours with `overlap` pieces in common.

    With `truncate` there is one row, and what does not fit into it is left out and counted. `orders` says how a pair is
    read that has no order of its own: as it is given, or in both, for which a task takes the mean.
    """

    max_length: int = 512
    overlap: int = 64
    truncate: bool = False
    pair_order: str = "given"

    def __post_init__(self) -> None:
        if self.pair_order not in PAIR_ORDERS:
            raise SettingsError(
                f"a pair cannot be read in the orders '{self.pair_order}'; choose one of: {', '.join(PAIR_ORDERS)}"
            )
        if self.max_length < 8 or self.overlap < 0 or self.overlap * 4 > self.max_length:
            raise SettingsError(
                f"windows of {self.max_length} places with {self.overlap} in common cannot work; give at least 8 places, "
                f"and an overlap of at most a quarter of them"
            )


@dataclass(frozen=True, slots=True)
class WindowSpan:
    """Pieces of one text in a row: from its piece `first` on, `count` of them, at the row's place `place` and after."""

    first: int
    count: int
    position: int


@dataclass(frozen=True, slots=True)
class Window:
    """One row: ids and segments (T,), which pieces of each text stand in it, and how words outside the vocabulary are
    written, by their places."""

    input_ids: Ints
    token_type_ids: Ints
    spans: tuple[WindowSpan, ...]
    unknown: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True, slots=True)
class Windows:
    """The rows of a text or pair, and how many pieces were left out because somebody asked for that."""

    sequences: tuple[Window, ...]
    num_truncated: int = 0

    def owners(self, text: int) -> Ints:
        """Return for each piece of a text the row in which it stands farthest from the edges: (P,)."""
        runs = [row.spans[text] for row in self.sequences]
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


def make_windows(tokenizer: Tokenizer, texts: Sequence[TokenizedText], window_rule: WindowRule) -> Windows:
    """Return the rows of one text or of two."""
    room = window_rule.max_length - tokenizer.num_special_tokens(len(texts))
    lengths = [len(text) for text in texts]
    num_cut = 0
    if sum(lengths) <= room:
        stretches = [[(0, length)] for length in lengths]
    elif window_rule.truncate:
        kept = [min(length, own) for length, own in zip(lengths, _token_budgets(lengths, room), strict=True)]
        num_cut = sum(lengths) - sum(kept)
        stretches = [[(0, length)] for length in kept]
    else:
        rooms = _token_budgets(lengths, room)
        stretches = [
            _window_spans(length, own, window_rule.overlap) for length, own in zip(lengths, rooms, strict=True)
        ]
    return Windows(tuple(_build_window(tokenizer, texts, spans) for spans in _align_spans(stretches)), num_cut)


def make_pair_windows(tokenizer: Tokenizer, texts: Sequence[TokenizedText], window_rule: WindowRule) -> Windows:
    """Return the rows of one text, or of a pair in the orders that the rule says. The runs of a row are always in the
    order of the texts, wherever they stand."""
    found = make_windows(tokenizer, texts, window_rule)
    if window_rule.pair_order == "given" or len(texts) == 1:
        return found
    turned = make_windows(tokenizer, texts[::-1], window_rule).sequences
    return Windows((*found.sequences, *(replace(row, spans=row.spans[::-1]) for row in turned)), found.num_truncated)


def _token_budgets(lengths: Sequence[int], max_tokens: int) -> list[int]:
    """Return how many pieces of each text a row has room for."""
    if len(lengths) == 1:
        return [max_tokens]
    shorter = min(*lengths, max_tokens // 2)
    longer_first = lengths[0] >= lengths[1]
    return [max_tokens - shorter, shorter] if longer_first else [shorter, max_tokens - shorter]


def _window_spans(length: int, max_tokens: int, overlap: int) -> list[tuple[int, int]]:
    """Cut 0..length into stretches of at most `room`, neighbours with about `overlap` in common, all equally long."""
    if length <= max_tokens:
        return [(0, length)]
    step = max(1, max_tokens - min(overlap, max_tokens // 2))
    count = 1 + -(-(length - max_tokens) // step)
    return [((length - max_tokens) * number // (count - 1), max_tokens) for number in range(count)]


def _align_spans(window_spans: Sequence[Sequence[tuple[int, int]]]) -> list[list[tuple[int, int]]]:
    """Pair the stretches of two texts: as many rows as the one with more of them has, the other keeps pace."""
    count = max(map(len, window_spans))
    return [[spans[number * len(spans) // count] for spans in window_spans] for number in range(count)]


def _build_window(tokenizer: Tokenizer, texts: Sequence[TokenizedText], spans: Sequence[tuple[int, int]]) -> Window:
    parts = [text.between(first, first + count) for text, (first, count) in zip(texts, spans, strict=True)]
    ids, segments, places = tokenizer.build_inputs(*(part.input_ids for part in parts))
    runs = tuple(WindowSpan(first, count, place) for (first, count), place in zip(spans, places, strict=True))
    unknown = {place + at: word for part, place in zip(parts, places, strict=True) for at, word in part.unknown.items()}
    return Window(ids, segments, runs, unknown)
