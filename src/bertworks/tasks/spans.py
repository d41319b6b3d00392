"""Answer spans: start and end scores of each window in, the best spans of the passage out; tokens <-> characters.

P tokens of a passage, n of them in a window, L the maximum answer length, K spans.

Which window scores a span. A span that is in several windows is scored once: in the window whose middle is nearest to
the middle of the span. As all windows of a passage have the same length, that is the window in which the span is
farthest from both edges: the paper's maximum context, for spans instead of single tokens. A span that fits into any
window is never lost, as it would be if the best window of its first token ended before its last.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.errors import InputError
from bertworks.sampling.windows import WindowSpan
from bertworks.vocabulary.tokenizer import TokenizedText

Ints = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.floating[Any]]

# The target of a sequence whose answer is unknown; no position has this index.
NO_TARGET = -1
# The first position of a sequence: the target where it does not hold the answer.
NULL_POSITION = 0


@dataclass(frozen=True, slots=True)
class WindowScores:
    """Start and end scores (n,) of the passage's tokens in a window, from token `first` on."""

    first: int
    starts: Floats
    ends: Floats


@dataclass(frozen=True, slots=True)
class Spans:
    """K token spans with their scores, best first: from token firsts[k] to token lasts[k], inclusive."""

    firsts: Ints
    lasts: Ints
    scores: Floats


@dataclass(frozen=True, slots=True)
class Edges:
    """The character at which an answer starts that starts with a token, and ends that ends with it: each (P,)."""

    begins: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32]


def best_spans(window_scores: Sequence[WindowScores], max_length: int, count: int) -> Spans:
    """Return the `count` best spans of at most `max_length` tokens; a span scores start plus end."""
    windows = _merge_windows(window_scores)
    middles = [2 * window.first + len(window.starts) - 1 for window in windows]  # doubled, to be integers
    candidates: list[tuple[Ints, Ints, Floats]] = []
    for index, window in enumerate(windows):
        low = middles[index - 1] + middles[index] if index else None
        high = middles[index] + middles[index + 1] if index + 1 < len(windows) else None
        candidates.append(_best_of_window(window, (low, high), max_length, count))
    firsts, lasts, scores = (np.concatenate(parts) for parts in zip(*candidates, strict=True))
    if not np.isfinite(scores).all():
        raise InputError("the model outputs NaN or infinity: its training diverged; use a lower learning rate")
    order = np.lexsort((lasts, firsts, -scores))[:count]  # of equal scores the earlier and shorter span
    return Spans(firsts[order], lasts[order], scores[order])


def _merge_windows(window_scores: Sequence[WindowScores]) -> list[WindowScores]:
    """Return the windows in passage order. Windows over the same tokens, under different parts of a question that is
    too long for one sequence, are averaged."""
    by_first: dict[int, list[WindowScores]] = {}
    for window in window_scores:
        by_first.setdefault(window.first, []).append(window)
    return [
        same_tokens[0]
        if len(same_tokens) == 1
        else WindowScores(
            first,
            np.mean([window.starts for window in same_tokens], 0),
            np.mean([window.ends for window in same_tokens], 0),
        )
        for first, same_tokens in sorted(by_first.items())
    ]


def _best_of_window(
    window: WindowScores, bounds: tuple[int | None, int | None], max_length: int, count: int
) -> tuple[Ints, Ints, Floats]:
    """Return firsts, lasts and scores of the best spans that this window scores.

    It scores the spans whose middle, times four, is above the first bound and not above the second.
    """
    num_tokens = len(window.starts)
    max_length = min(max_length, num_tokens)
    padded = np.concatenate([window.ends, np.full(max_length - 1, -np.inf, dtype=window.ends.dtype)])
    # (n, L): the end score of the span that starts at i and has j + 1 tokens
    end_scores = np.lib.stride_tricks.sliding_window_view(padded, max_length)
    scores = window.starts[:, None] + end_scores
    low, high = bounds
    if low is not None or high is not None:
        middles = 4 * (window.first + np.arange(num_tokens))[:, None] + 2 * np.arange(max_length)  # (n, L)
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
    """Return the softmax of scores, in double precision."""
    exponentials = np.exp(scores.astype(np.float64) - scores.max())
    return exponentials / exponentials.sum()


def edges_of(tokens: TokenizedText, text: str) -> Edges:
    """Return where answers start and end, so that none cuts through a word or has white space at its ends.

    An answer is the text under its tokens, extended to the ends of the words in which they are: "norman ##s" is never
    answered as "norman". A word is a run of cased letters and digits: an answer may end at a hyphen or before "'s".
    Scripts that do not separate words (ideographs, kana, Thai), or attach particles to them (Hangul, Arabic), have no
    such runs, and tokens are taken as they are.
    """
    if len(tokens) == 0:
        return Edges(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int32))
    starts, max_ends = tokens.offsets[:, 0], np.maximum.accumulate(tokens.offsets[:, 1])
    begins_word = np.ones(len(tokens), dtype=bool)
    for index in (np.flatnonzero(starts[1:] <= max_ends[:-1]) + 1).tolist():  # tokens adjacent to the one before
        start = int(starts[index])
        begins_word[index] = start == 0 or not (_is_word_character(text[start - 1]) and _is_word_character(text[start]))
    indices = np.arange(len(tokens))
    word_firsts = np.maximum.accumulate(np.where(begins_word, indices, 0))
    ends_word = np.append(begins_word[1:], True)
    word_lasts = np.minimum.accumulate(np.where(ends_word, indices, len(tokens))[::-1])[::-1]
    return _trim_spaces(starts[word_firsts].astype(np.int32), max_ends[word_lasts].astype(np.int32), text)


def _is_word_character(character: str) -> bool:
    """Whether a character is a cased letter, a digit, or a combining mark."""
    return character.lower() != character.upper() or character.isdecimal() or unicodedata.combining(character) > 0


def _trim_spaces(begins: npt.NDArray[np.int32], ends: npt.NDArray[np.int32], text: str) -> Edges:
    """Move edges inwards over white space: byte-level tokens include the space before a word."""
    for index in [index for index, position in enumerate(begins.tolist()) if text[position : position + 1].isspace()]:
        while text[begins[index] : begins[index] + 1].isspace():
            begins[index] += 1
    for index in [index for index, position in enumerate(ends.tolist()) if text[position - 1 : position].isspace()]:
        while text[ends[index] - 1 : ends[index]].isspace():
            ends[index] -= 1
    return Edges(begins, ends)


def token_span_of(tokens: TokenizedText, begin: int, end: int) -> tuple[int, int] | None:
    """Return the first and the last token of the characters from `begin` to `end`; None if there is no token."""
    inside = np.flatnonzero((tokens.offsets[:, 1] > begin) & (tokens.offsets[:, 0] < end))
    return (int(inside[0]), int(inside[-1])) if len(inside) else None


def span_labels(is_impossible: bool, span: tuple[int, int] | None, window_span: WindowSpan) -> dict[str, int]:
    """Return the start and end positions in a window of the answer from token span[0] to span[1] of the passage."""
    if is_impossible:
        return {"start": NULL_POSITION, "end": NULL_POSITION}
    if span is None:
        return {"start": NO_TARGET, "end": NO_TARGET}
    if span[0] < window_span.first or span[1] >= window_span.first + window_span.count:
        return {"start": NULL_POSITION, "end": NULL_POSITION}
    offset = window_span.position - window_span.first
    return {"start": span[0] + offset, "end": span[1] + offset}


def has_answers(edges: Edges, window_span: WindowSpan) -> bool:
    """Whether any token of a window can be an answer: not if all of them are white space."""
    return not _is_blank(edges, window_span).all()


def scores_of_window(edges: Edges, window_span: WindowSpan, output: npt.NDArray[np.float32]) -> WindowScores:
    """Return the scores of the passage's tokens from the output (T, 2) of a window; -inf for white space."""
    scores = output[window_span.position : window_span.position + window_span.count]  # (n, 2)
    is_blank = _is_blank(edges, window_span)
    if is_blank.any():
        scores = np.where(is_blank[:, None], np.float32(-np.inf), scores)
    return WindowScores(window_span.first, scores[:, 0], scores[:, 1])


def _is_blank(edges: Edges, window_span: WindowSpan) -> npt.NDArray[np.bool_]:
    """Return (n,): which tokens of a window are white space only, and can neither start nor end an answer."""
    tokens = slice(window_span.first, window_span.first + window_span.count)
    return edges.begins[tokens] >= edges.ends[tokens]


def positions_of_span(
    edges: Edges,
    span: tuple[int, int],
    window_spans: Sequence[WindowSpan],
    outputs: Sequence[npt.NDArray[np.float32]],
) -> dict[int, tuple[int, int]]:
    """Return the windows that score a span of characters, each with the positions of its start and end in it.

    If several tokens of a word start the same span, it is the one with the highest score.
    """
    starts, ends = np.flatnonzero(edges.begins == span[0]), np.flatnonzero(edges.ends == span[1])
    # A window may hold only a part of a very long word.
    candidates = [
        candidate
        for candidate in window_spans
        if len(_positions_in(candidate, starts)) and len(_positions_in(candidate, ends))
    ]
    nearest = max(
        candidates,
        key=lambda candidate: min(starts[0] - candidate.first, candidate.first + candidate.count - 1 - ends[-1]),
    ).first
    positions = {}
    for index, (window_span, scores) in enumerate(zip(window_spans, outputs, strict=True)):
        if window_span.first == nearest:
            first, last = _positions_in(window_span, starts), _positions_in(window_span, ends)
            positions[index] = (int(first[scores[first, 0].argmax()]), int(last[scores[last, 1].argmax()]))
    return positions


def _positions_in(window_span: WindowSpan, token_indices: Ints) -> Ints:
    """Return the positions of those tokens that are in a window."""
    inside = (token_indices >= window_span.first) & (token_indices < window_span.first + window_span.count)
    return token_indices[inside] - window_span.first + window_span.position
