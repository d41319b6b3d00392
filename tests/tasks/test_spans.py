"""Answer spans: the best spans of scored windows, and their characters in the text."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertworks.errors import InputError
from bertworks.tasks.spans import Spans, WindowScores, best_spans, edges_of, softmax, token_span_of
from bertworks.vocabulary.tokenizer import TokenizedText


def window(first: int, starts: list[float], ends: list[float]) -> WindowScores:
    return WindowScores(first, np.array(starts, dtype=np.float32), np.array(ends, dtype=np.float32))


def to_list(spans: Spans) -> list[tuple[int, int, float]]:
    return list(zip(spans.firsts.tolist(), spans.lasts.tolist(), spans.scores.tolist(), strict=True))


def tokens_of(*parts: tuple[int, int, bool]) -> TokenizedText:
    """Tokens by start, end, and whether a word begins there."""
    table = np.array(parts, dtype=np.int64).reshape(-1, 3)
    return TokenizedText(np.zeros(len(parts), dtype=np.int64), table[:, :2], table[:, 2].astype(bool))


# --- The best spans ------------------------------------------------------------------------------


def test_spans_are_scored_by_start_plus_end_best_first():
    spans = best_spans([window(0, [1.0, 5.0, 0.0], [0.0, 2.0, 4.0])], max_length=3, count=3)
    assert to_list(spans) == [(1, 2, 9.0), (1, 1, 7.0), (0, 2, 5.0)]


def test_a_span_never_ends_before_it_starts():
    spans = best_spans([window(0, [0.0, 0.0, 9.0], [9.0, 0.0, 0.0])], max_length=3, count=100)
    assert len(spans.scores) == 6  # 3 of one token, 2 of two, 1 of three
    assert (spans.firsts <= spans.lasts).all()
    assert (spans.firsts[0], spans.lasts[0]) == (0, 0)  # of the equally good (0, 0) and (2, 2) the earlier


def test_a_span_has_at_most_max_length_tokens():
    one = window(0, [9.0, 0.0, 0.0, 0.0], [0.5, 0.0, 1.0, 9.0])
    assert to_list(best_spans([one], max_length=4, count=1)) == [(0, 3, 18.0)]
    assert to_list(best_spans([one], max_length=3, count=1)) == [(0, 2, 10.0)]
    assert to_list(best_spans([one], max_length=1, count=1)) == [(0, 0, 9.5)]


def test_a_span_is_scored_in_the_window_where_it_is_farthest_from_the_edges():
    # Tokens 0..5 and 4..9: their middles are 2.5 and 6.5, so the first scores spans with a middle up to 4.5.
    first = window(0, [0.0] * 6, [0.0] * 6)
    second = window(4, [9.0, 0.0, 0.0, 0.0, 0.0, 0.0], [9.0, 8.0, 0.0, 0.0, 0.0, 0.0])
    spans = to_list(best_spans([first, second], max_length=6, count=100))
    assert (4, 4, 0.0) in spans  # not 18, the score at the edge of the second
    assert (4, 5, 0.0) in spans  # its middle, 4.5, is as near to both: the first scores it
    assert spans[0] == (4, 6, 9.0)  # middle 5
    assert (5, 5, 8.0) in spans
    assert len({(one, last) for one, last, _ in spans}) == len(spans)


def test_a_span_across_the_end_of_its_first_token_s_best_window_is_found():
    # Token 3 is farthest from the edges in the first window (0..5), but the span 3..6 is only in the second (2..7).
    first, second = window(0, [0.0] * 6, [0.0] * 6), window(2, [0.0, 7.0, 0, 0, 0, 0], [0, 0, 0, 0, 7.0, 0])
    assert to_list(best_spans([first, second], max_length=6, count=1)) == [(3, 6, 14.0)]


def test_windows_over_the_same_tokens_are_averaged():
    same = [window(0, [4.0, 0.0], [4.0, 0.0]), window(0, [0.0, 6.0], [0.0, 6.0])]
    assert to_list(best_spans(same, max_length=1, count=2)) == [(1, 1, 6.0), (0, 0, 4.0)]


def test_tokens_with_score_minus_infinity_are_in_no_span():
    spans = best_spans([window(0, [-np.inf, 0.0], [-np.inf, 0.0])], max_length=2, count=9)
    assert to_list(spans) == [(1, 1, 0.0)]


def test_nan_scores_raise_an_error():
    with pytest.raises(InputError, match="diverged; use a lower learning rate"):
        best_spans([window(0, [0.0, np.nan], [0.0, 0.0])], max_length=2, count=3)


@settings(max_examples=60, deadline=None)
@given(
    num_tokens=st.integers(1, 40),
    window_length=st.integers(4, 12),
    step=st.integers(1, 12),
    max_length=st.integers(1, 6),
    seed=st.integers(0, 2**32 - 1),
)
def test_best_spans_equal_an_exhaustive_search(
    num_tokens: int, window_length: int, step: int, max_length: int, seed: int
):
    window_length, step = min(window_length, num_tokens), min(step, window_length)
    firsts = sorted({*range(0, num_tokens - window_length, step), num_tokens - window_length})
    generator = np.random.default_rng(seed)
    windows = [WindowScores(first, *generator.normal(size=(2, window_length)).astype(np.float32)) for first in firsts]
    expected = {}
    for start in range(num_tokens):
        for last in range(start, min(num_tokens, start + max_length)):
            holding = [one for one in windows if one.first <= start and last < one.first + window_length]
            if holding:
                best = max(holding, key=lambda one: min(start - one.first, one.first + window_length - 1 - last))
                expected[start, last] = best.starts[start - best.first] + best.ends[last - best.first]
    all_spans = best_spans(windows, max_length, 10_000)
    assert {(one, last): score for one, last, score in to_list(all_spans)} == expected
    assert all(better >= worse for better, worse in pairwise(all_spans.scores.tolist()))
    few = best_spans(windows, max_length, 5)
    assert few.scores.tolist() == all_spans.scores[:5].tolist()


def test_softmax_of_scores():
    assert softmax(np.array([0.0, np.log(3.0)])).tolist() == pytest.approx([0.25, 0.75])
    assert softmax(np.array([5_000.0, 5_000.0], dtype=np.float32)).tolist() == [0.5, 0.5]


# --- Tokens and text -----------------------------------------------------------------------------


def test_answers_extend_to_the_ends_of_words():
    text = "the Normans won"
    edges = edges_of(tokens_of((0, 3, True), (4, 10, True), (10, 11, False), (12, 15, True)), text)
    assert text[edges.begins[1] : edges.ends[1]] == "Normans"
    assert text[edges.begins[2] : edges.ends[2]] == "Normans"
    assert text[edges.begins[0] : edges.ends[0]] == "the"
    assert text[edges.begins[2] : edges.ends[3]] == "Normans won"


def test_combining_marks_belong_to_the_letter_before_them():
    text = "cafe\u0301s"
    edges = edges_of(tokens_of((0, 5, True), (5, 6, False)), text)
    assert (edges.begins.tolist(), edges.ends.tolist()) == ([0, 0], [6, 6])


def test_a_text_without_tokens_has_no_edges():
    edges = edges_of(tokens_of(), "\x00")
    assert len(edges.begins) == len(edges.ends) == 0


def test_answers_may_end_at_punctuation_inside_a_run_of_letters():
    text = "Denver's well-known"
    edges = edges_of(
        tokens_of((0, 6, True), (6, 7, True), (7, 8, True), (9, 13, True), (13, 14, True), (14, 19, True)), text
    )
    assert text[edges.begins[0] : edges.ends[0]] == "Denver"
    assert text[edges.begins[5] : edges.ends[5]] == "known"


@pytest.mark.parametrize("text", ["日本語です", "ひらがな", "ภาษาไทย", "서울에서"])
def test_scripts_without_spaces_between_words_are_split_at_tokens(text: str):
    edges = edges_of(tokens_of((0, 2, True), (2, 3, False), (3, len(text), False)), text)
    assert edges.begins.tolist() == [0, 2, 3]
    assert edges.ends.tolist() == [2, 3, len(text)]


def test_a_latin_word_next_to_ideographs_is_one_word():
    text = "使用Linux内核"
    edges = edges_of(
        tokens_of((0, 1, True), (1, 2, True), (2, 5, True), (5, 7, False), (7, 8, True), (8, 9, True)), text
    )
    assert [text[begin:end] for begin, end in zip(edges.begins, edges.ends, strict=True)] == [
        "使", "用", "Linux", "Linux", "内", "核"
    ]  # fmt: skip


def test_white_space_at_the_edges_of_tokens_is_not_part_of_an_answer():
    text = "a  b \n"
    edges = edges_of(tokens_of((0, 1, True), (1, 2, True), (2, 5, True), (5, 6, True)), text)
    assert (edges.begins[2], edges.ends[2]) == (3, 4)
    assert text[edges.begins[0] : edges.ends[2]] == "a  b"
    assert edges.begins[1] >= edges.ends[1]  # nothing but a space
    assert edges.begins[3] >= edges.ends[3]


def test_token_span_of_an_answer_includes_partial_tokens():
    tokens = tokens_of((0, 3, True), (4, 10, True), (10, 11, False), (12, 15, True))  # the norman ##s won
    assert token_span_of(tokens, 4, 11) == (1, 2)
    assert token_span_of(tokens, 5, 9) == (1, 1)
    assert token_span_of(tokens, 0, 15) == (0, 3)
    assert token_span_of(tokens, 10, 12) == (2, 2)
    assert token_span_of(tokens, 11, 12) is None  # the space
