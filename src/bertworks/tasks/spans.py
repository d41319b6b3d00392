"""Scores of where an answer begins and ends in each window in, the best spans of the passage out; pieces <-> text.

P pieces of a passage, n of them in a window, L the most pieces an answer may have, K spans.

Which window speaks for a span. A span that stands in several windows is scored once: in the window whose middle is
nearest to the middle of the span. As all windows of a passage are equally long, that is where the span, from its first
piece to its last, stands farthest from both edges: maximum context, for spans instead of single pieces. A span that
fits in any window is never lost, as it would be where the best window of its first piece ends before its last.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.errors import InputError
from bertworks.vocabulary.tokenizer import TokenizedText

Ints = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class WindowScores:
    """What one window says of n pieces of the passage, from its piece `first` on: an answer starts, and ends, there."""

    first: int
    starts: Floats
    ends: Floats


@dataclass(frozen=True, slots=True)
class Spans:
    """K spans of pieces with their scores, the best first: from piece firsts[k] to piece lasts[k], both included."""

    firsts: Ints
    lasts: Ints
    scores: Floats


@dataclass(frozen=True, slots=True)
class Edges:
    """Where in the text an answer begins that begins with a piece, and where one ends that ends with it: each (P,)."""

    begins: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32]


def best_spans(window_scores: Sequence[WindowScores], max_length: int, count: int) -> Spans:
    """Return the `count` best spans of at most `longest` pieces; the score of a span is that of its start and end."""
    windows = _merge_windows(window_scores)
    middles = [2 * window.first + len(window.starts) - 1 for window in windows]  # doubled, so that they are whole
    found: list[tuple[Ints, Ints, Floats]] = []
    for number, window in enumerate(windows):
        low = middles[number - 1] + middles[number] if number else None
        high = middles[number] + middles[number + 1] if number + 1 < len(windows) else None
        found.append(_best_of_window(window, (low, high), max_length, count))
    firsts, lasts, scores = (np.concatenate(parts) for parts in zip(*found, strict=True))
    if not np.isfinite(scores).all():
        raise InputError("a score of the model is not a number: its training has diverged; train it at a lower rate")
    order = np.lexsort((lasts, firsts, -scores))[:count]  # of equals the earlier and shorter
    return Spans(firsts[order], lasts[order], scores[order])


def _merge_windows(window_scores: Sequence[WindowScores]) -> list[WindowScores]:
    """Return the windows in the order of the passage; those over the same pieces, under other parts of a question that
    is too long for one row, are averaged."""
    together: dict[int, list[WindowScores]] = {}
    for stretch in window_scores:
        together.setdefault(stretch.first, []).append(stretch)
    return [
        same[0]
        if len(same) == 1
        else WindowScores(first, np.mean([one.starts for one in same], 0), np.mean([one.ends for one in same], 0))
        for first, same in sorted(together.items())
    ]


def _best_of_window(
    window: WindowScores, bounds: tuple[int | None, int | None], max_length: int, count: int
) -> tuple[Ints, Ints, Floats]:
    """Return firsts, lasts and scores of the best spans for which this window speaks.

    `own` bounds four times a span's middle: above the first number, and not above the second, the window is nearest.
    """
    num_pieces = len(window.starts)
    max_length = min(max_length, num_pieces)
    padded = np.concatenate([window.ends, np.full(max_length - 1, -np.inf, dtype=window.ends.dtype)])
    band = np.lib.stride_tricks.sliding_window_view(
        padded, max_length
    )  # (n, L): the end of a span from i of j + 1 pieces
    scores = window.starts[:, None] + band
    low, high = bounds
    if low is not None or high is not None:
        middles = 4 * (window.first + np.arange(num_pieces))[:, None] + 2 * np.arange(max_length)  # (n, L)
        if low is not None:
            scores[middles <= low] = -np.inf
        if high is not None:
            scores[middles > high] = -np.inf
    flat = scores.ravel()
    best = np.argpartition(flat, -count)[-count:] if len(flat) > count else np.arange(len(flat))
    best = best[flat[best] != -np.inf]
    firsts = window.first + best // max_length
    return firsts, firsts + best % max_length, flat[best]


def softmax(scores: Floats) -> npt.NDArray[np.float64]:
    """Return the probability of each of some scores, as if one of them had to be right: softmax."""
    powers = np.exp(scores.astype(np.float64) - scores.max())
    return powers / powers.sum()


def edges_of(tokens: TokenizedText, text: str) -> Edges:
    """Return where answers begin and end, so that none cuts through a word and none has white space at its ends.

    An answer is what stands under its pieces in the text, to the letter, and reaches on to the ends of the words in
    which they lie: "norman ##s" is never answered as "norman". A word is a run of cased letters and digits: an answer
    may end at a hyphen or before "'s". Scripts that do not separate words (ideographs, kana, Thai), or write particles
    to them (Hangul, Arabic), have no such runs, and there pieces are taken as they are.
    """
    if len(tokens) == 0:
        return Edges(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int32))
    starts, furthest = tokens.offsets[:, 0], np.maximum.accumulate(tokens.offsets[:, 1])
    begins_word = np.ones(len(tokens), dtype=bool)
    for place in (np.flatnonzero(starts[1:] <= furthest[:-1]) + 1).tolist():  # nothing stands between it and the last
        at = int(starts[place])
        begins_word[place] = at == 0 or not (_is_word_character(text[at - 1]) and _is_word_character(text[at]))
    numbers = np.arange(len(tokens))
    heads = np.maximum.accumulate(np.where(begins_word, numbers, 0))
    ends_word = np.append(begins_word[1:], True)
    tails = np.minimum.accumulate(np.where(ends_word, numbers, len(tokens))[::-1])[::-1]
    return _trim_spaces(starts[heads].astype(np.int32), furthest[tails].astype(np.int32), text)


def _is_word_character(character: str) -> bool:
    """Whether a character is a cased letter, a digit, or a mark on the letter before it."""
    return character.lower() != character.upper() or character.isdecimal() or unicodedata.combining(character) > 0


def _trim_spaces(begins: npt.NDArray[np.int32], ends: npt.NDArray[np.int32], text: str) -> Edges:
    """Move edges inwards over white space: byte-level pieces have the space before a word in front of them."""
    for place in [place for place, at in enumerate(begins.tolist()) if text[at : at + 1].isspace()]:
        while text[begins[place] : begins[place] + 1].isspace():
            begins[place] += 1
    for place in [place for place, at in enumerate(ends.tolist()) if text[at - 1 : at].isspace()]:
        while text[ends[place] - 1 : ends[place]].isspace():
            ends[place] -= 1
    return Edges(begins, ends)


def token_span_of(tokens: TokenizedText, begin: int, end: int) -> tuple[int, int] | None:
    """Return the first and the last piece of what stands in the text from `begin` to `end`; None if it has no piece."""
    inside = np.flatnonzero((tokens.offsets[:, 1] > begin) & (tokens.offsets[:, 0] < end))
    return (int(inside[0]), int(inside[-1])) if len(inside) else None
