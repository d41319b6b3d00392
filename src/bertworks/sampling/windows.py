"""Windows over long texts: the tokens of a text or a pair in, sequences that fit a model out, covering every token.

In a pair, the window slides over the longer text beside the whole shorter one. If the shorter one takes more than half
of the sequence, windows slide over both, each in its half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from bertworks.errors import SettingsError
from bertworks.vocabulary.token_arrays import TokenizedText
from bertworks.vocabulary.tokenizer import Tokenizer

Ints = npt.NDArray[np.int64]
PAIR_ORDERS = ("given", "both")


@dataclass(frozen=True, slots=True)
class WindowRule:
    """How long texts are split: sequences of at most `max_length` positions, neighbors share `overlap` tokens.

    truncate     a single sequence; the tokens that do not fit are dropped and counted
    pair_order   of symmetric pairs: "given", or "both", where a task averages the predictions of both orders
    """

    max_length: int = 512
    overlap: int = 64
    truncate: bool = False
    pair_order: str = "given"

    def __post_init__(self) -> None:
        if self.pair_order not in PAIR_ORDERS:
            raise SettingsError(f"there is no pair_order '{self.pair_order}'; choose one of: {', '.join(PAIR_ORDERS)}")
        if self.max_length < 8 or self.overlap < 0 or self.overlap * 4 > self.max_length:
            raise SettingsError(
                f"max_length = {self.max_length}, overlap = {self.overlap}: max_length must be at least 8, and overlap"
                " at most a quarter of it"
            )


@dataclass(frozen=True, slots=True)
class WindowSpan:
    """Tokens first..first+count-1 of a text, which start at `position` of the sequence."""

    first: int
    count: int
    position: int


@dataclass(frozen=True, slots=True)
class Window:
    """One sequence (T,), with the span of each text in it and the spelling of out-of-vocabulary words by position."""

    input_ids: Ints
    token_type_ids: Ints
    spans: tuple[WindowSpan, ...]
    unknown: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True, slots=True)
class Windows:
    """The sequences of a text or pair, and the number of truncated tokens."""

    sequences: tuple[Window, ...]
    num_truncated: int = 0

    def owners(self, text: int) -> Ints:
        """Return, for each token of a text (N,), the index of the window in which it is farthest from the edges."""
        spans = [window.spans[text] for window in self.sequences]
        owners = np.zeros(max(span.first + span.count for span in spans), dtype=np.int64)
        max_context = np.full(len(owners), -1, dtype=np.int64)
        for index, span in enumerate(spans):
            distance = np.arange(span.count)
            context = np.minimum(distance, distance[::-1])
            tokens = slice(span.first, span.first + span.count)
            is_larger = context > max_context[tokens]
            owners[tokens][is_larger] = index
            max_context[tokens][is_larger] = context[is_larger]
        return owners


def make_windows(tokenizer: Tokenizer, texts: Sequence[TokenizedText], window_rule: WindowRule) -> Windows:
    """Return the windows of one text or of a pair."""
    max_tokens = window_rule.max_length - tokenizer.num_special_tokens(len(texts))
    lengths = [len(text) for text in texts]
    num_truncated = 0
    if sum(lengths) <= max_tokens:
        spans = [[(0, length)] for length in lengths]
    elif window_rule.truncate:
        budgets = _token_budgets(lengths, max_tokens)
        truncated_lengths = [min(length, budget) for length, budget in zip(lengths, budgets, strict=True)]
        num_truncated = sum(lengths) - sum(truncated_lengths)
        spans = [[(0, length)] for length in truncated_lengths]
    else:
        spans = [
            _window_spans(length, budget, window_rule.overlap)
            for length, budget in zip(lengths, _token_budgets(lengths, max_tokens), strict=True)
        ]
    return Windows(
        tuple(_build_window(tokenizer, texts, window_spans) for window_spans in _align_spans(spans)), num_truncated
    )


def make_text_windows(tokenizer: Tokenizer, text: TokenizedText, window_rule: WindowRule) -> Windows:
    """Return the windows of a text that becomes one vector: truncated on the side that the tokenizer states.

    The spans of its windows count from the first token that is left.
    """
    num_excess = len(text) + tokenizer.num_special_tokens(1) - window_rule.max_length
    is_cut = window_rule.truncate and tokenizer.truncation_side == "left" and num_excess > 0
    num_dropped = num_excess if is_cut else 0
    windows = make_windows(tokenizer, [text.between(num_dropped, len(text))], window_rule)
    return replace(windows, num_truncated=windows.num_truncated + num_dropped)


def make_pair_windows(tokenizer: Tokenizer, texts: Sequence[TokenizedText], window_rule: WindowRule) -> Windows:
    """Return the windows of one text, or of a pair in the orders of the rule.

    The spans of a window are always in the order of `texts`.
    """
    windows = make_windows(tokenizer, texts, window_rule)
    if window_rule.pair_order == "given" or len(texts) == 1:
        return windows
    swapped = make_windows(tokenizer, texts[::-1], window_rule).sequences
    restored = (replace(window, spans=window.spans[::-1]) for window in swapped)
    return Windows((*windows.sequences, *restored), windows.num_truncated)


def _token_budgets(lengths: Sequence[int], max_tokens: int) -> list[int]:
    """Return the maximum number of tokens of each text in a window."""
    if len(lengths) == 1:
        return [max_tokens]
    shorter = min(*lengths, max_tokens // 2)
    is_first_longer = lengths[0] >= lengths[1]
    return [max_tokens - shorter, shorter] if is_first_longer else [shorter, max_tokens - shorter]


def _window_spans(length: int, max_tokens: int, overlap: int) -> list[tuple[int, int]]:
    """Return (first, count) of equally long windows of at most `max_tokens`; neighbors overlap by about `overlap`."""
    if length <= max_tokens:
        return [(0, length)]
    step = max(1, max_tokens - min(overlap, max_tokens // 2))
    count = 1 + -(-(length - max_tokens) // step)
    return [((length - max_tokens) * index // (count - 1), max_tokens) for index in range(count)]


def _align_spans(window_spans: Sequence[Sequence[tuple[int, int]]]) -> list[list[tuple[int, int]]]:
    """Combine the spans of two texts: as many windows as the text with more spans has; the other advances evenly."""
    count = max(map(len, window_spans))
    return [[spans[index * len(spans) // count] for spans in window_spans] for index in range(count)]


def _build_window(tokenizer: Tokenizer, texts: Sequence[TokenizedText], spans: Sequence[tuple[int, int]]) -> Window:
    parts = [text.between(first, first + count) for text, (first, count) in zip(texts, spans, strict=True)]
    input_ids, token_type_ids, starts = tokenizer.build_inputs(*(part.input_ids for part in parts))
    window_spans = tuple(WindowSpan(first, count, start) for (first, count), start in zip(spans, starts, strict=True))
    unknown = {
        start + index: word for part, start in zip(parts, starts, strict=True) for index, word in part.unknown.items()
    }
    return Window(input_ids, token_type_ids, window_spans, unknown)
