"""The best spans of scored windows, and where they lie in the text."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertworks.errors import InputError
from bertworks.tasks.spans import Spans, WindowScores, best_spans, edges_of, softmax, token_span_of
from bertworks.vocabulary.tokenizer import TokenizedText


def stretch(first: int, starts: list[float], ends: list[float]) -> WindowScores:
    return WindowScores(first, np.array(starts, dtype=np.float32), np.array(ends, dtype=np.float32))


def told(spans: Spans) -> list[tuple[int, int, float]]:
    return list(zip(spans.firsts.tolist(), spans.lasts.tolist(), spans.scores.tolist(), strict=True))


def cut_of(*parts: tuple[int, int, bool]) -> TokenizedText:
    """Pieces by where they start and end in the text, and whether a word begins there."""
    table = np.array(parts, dtype=np.int64).reshape(-1, 3)
    return TokenizedText(np.zeros(len(parts), dtype=np.int64), table[:, :2], table[:, 2].astype(bool))


# --- The best spans ------------------------------------------------------------------------------


def test_spans_are_scored_by_start_plus_end_and_told_the_best_first():
    spans = best_spans([stretch(0, [1.0, 5.0, 0.0], [0.0, 2.0, 4.0])], max_length=3, count=3)
    assert told(spans) == [(1, 2, 9.0), (1, 1, 7.0), (0, 2, 5.0)]


def test_a_span_never_ends_before_it_starts():
    spans = best_spans([stretch(0, [0.0, 0.0, 9.0], [9.0, 0.0, 0.0])], max_length=3, count=100)
    assert len(spans.scores) == 6  # 3 of one piece, 2 of two, 1 of three
    assert (spans.firsts <= spans.lasts).all()
    assert (spans.firsts[0], spans.lasts[0]) == (0, 0)  # of the equally good (0, 0) and (2, 2) the earlier


def test_a_span_has_at_most_as_many_pieces_as_allowed():
    one = stretch(0, [9.0, 0.0, 0.0, 0.0], [0.5, 0.0, 1.0, 9.0])
    assert told(best_spans([one], max_length=4, count=1)) == [(0, 3, 18.0)]
    assert told(best_spans([one], max_length=3, count=1)) == [(0, 2, 10.0)]
    assert told(best_spans([one], max_length=1, count=1)) == [(0, 0, 9.5)]


def test_a_span_is_scored_only_where_it_stands_farthest_from_the_edges():
    # Pieces 0..5 and 4..9: their middles are 2.5 and 6.5, so a span with a middle up to 4.5 belongs to the first.
    first = stretch(0, [0.0] * 6, [0.0] * 6)
    second = stretch(4, [9.0, 0.0, 0.0, 0.0, 0.0, 0.0], [9.0, 8.0, 0.0, 0.0, 0.0, 0.0])
    spans = told(best_spans([first, second], max_length=6, count=100))
    assert (4, 4, 0.0) in spans  # not 18, what the second says of its edge
    assert (4, 5, 0.0) in spans  # its middle, 4.5, is as near to both: the first speaks
    assert spans[0] == (4, 6, 9.0)  # middle 5
    assert (5, 5, 8.0) in spans
    assert len({(one, last) for one, last, _ in spans}) == len(spans)


def test_a_span_is_not_lost_where_the_best_window_of_its_first_piece_ends():
    # Piece 3 stands best in the first window (0..5), but a span 3..6 is only whole in the second (2..7).
    first, second = stretch(0, [0.0] * 6, [0.0] * 6), stretch(2, [0.0, 7.0, 0, 0, 0, 0], [0, 0, 0, 0, 7.0, 0])
    assert told(best_spans([first, second], max_length=6, count=1)) == [(3, 6, 14.0)]


def test_windows_with_other_parts_of_the_question_are_averaged():
    same = [stretch(0, [4.0, 0.0], [4.0, 0.0]), stretch(0, [0.0, 6.0], [0.0, 6.0])]
    assert told(best_spans(same, max_length=1, count=2)) == [(1, 1, 6.0), (0, 0, 4.0)]


def test_pieces_at_minus_infinity_start_and_end_no_span():
    spans = best_spans([stretch(0, [-np.inf, 0.0], [-np.inf, 0.0])], max_length=2, count=9)
    assert told(spans) == [(1, 1, 0.0)]


def test_scores_that_are_no_numbers_are_refused():
    with pytest.raises(InputError, match="diverged; train it at a lower rate"):
        best_spans([stretch(0, [0.0, np.nan], [0.0, 0.0])], max_length=2, count=3)


@settings(max_examples=60, deadline=None)
@given(
    num_pieces=st.integers(1, 40),
    room=st.integers(4, 12),
    step=st.integers(1, 12),
    longest=st.integers(1, 6),
    seed=st.integers(0, 2**32 - 1),
)
def test_all_spans_of_all_windows_are_found_as_by_trying_each(
    num_pieces: int, room: int, step: int, longest: int, seed: int
):
    room, step = min(room, num_pieces), min(step, room)
    firsts = sorted({*range(0, num_pieces - room, step), num_pieces - room})
    generator = np.random.default_rng(seed)
    windows = [WindowScores(first, *generator.normal(size=(2, room)).astype(np.float32)) for first in firsts]
    expected = {}
    for start in range(num_pieces):
        for last in range(start, min(num_pieces, start + longest)):
            whole = [one for one in windows if one.first <= start and last < one.first + room]
            if whole:
                best = max(whole, key=lambda one: min(start - one.first, one.first + room - 1 - last))
                expected[start, last] = best.starts[start - best.first] + best.ends[last - best.first]
    found = best_spans(windows, longest, 10_000)
    assert {(one, last): score for one, last, score in told(found)} == expected
    assert all(better >= worse for better, worse in pairwise(found.scores.tolist()))
    few = best_spans(windows, longest, 5)
    assert few.scores.tolist() == found.scores[:5].tolist()


def test_chances_sum_to_one_and_follow_the_scores():
    assert softmax(np.array([0.0, np.log(3.0)])).tolist() == pytest.approx([0.25, 0.75])
    assert softmax(np.array([5_000.0, 5_000.0], dtype=np.float32)).tolist() == [0.5, 0.5]


# --- Pieces and text -----------------------------------------------------------------------------


def test_answers_reach_to_the_ends_of_words():
    text = "the Normans won"
    edges = edges_of(cut_of((0, 3, True), (4, 10, True), (10, 11, False), (12, 15, True)), text)
    assert text[edges.begins[1] : edges.ends[1]] == "Normans"
    assert text[edges.begins[2] : edges.ends[2]] == "Normans"
    assert text[edges.begins[0] : edges.ends[0]] == "the"
    assert text[edges.begins[2] : edges.ends[3]] == "Normans won"


def test_marks_belong_to_the_letter_before_them():
    text = "cafe\u0301s"
    edges = edges_of(cut_of((0, 5, True), (5, 6, False)), text)
    assert (edges.begins.tolist(), edges.ends.tolist()) == ([0, 0], [6, 6])


def test_a_text_without_pieces_has_no_edges():
    edges = edges_of(cut_of(), "\x00")
    assert len(edges.begins) == len(edges.ends) == 0


def test_answers_may_end_at_punctuation_inside_a_run_of_letters():
    text = "Denver's well-known"
    edges = edges_of(
        cut_of((0, 6, True), (6, 7, True), (7, 8, True), (9, 13, True), (13, 14, True), (14, 19, True)), text
    )
    assert text[edges.begins[0] : edges.ends[0]] == "Denver"
    assert text[edges.begins[5] : edges.ends[5]] == "known"


@pytest.mark.parametrize("text", ["日本語です", "ひらがな", "ภาษาไทย", "서울에서"])
def test_scripts_without_words_between_spaces_are_cut_at_pieces(text: str):
    edges = edges_of(cut_of((0, 2, True), (2, 3, False), (3, len(text), False)), text)
    assert edges.begins.tolist() == [0, 2, 3]
    assert edges.ends.tolist() == [2, 3, len(text)]


def test_a_latin_word_beside_ideographs_is_kept_whole_and_alone():
    text = "使用Linux内核"
    edges = edges_of(cut_of((0, 1, True), (1, 2, True), (2, 5, True), (5, 7, False), (7, 8, True), (8, 9, True)), text)
    assert [text[begin:end] for begin, end in zip(edges.begins, edges.ends, strict=True)] == [
        "使", "用", "Linux", "Linux", "内", "核"
    ]  # fmt: skip


def test_white_space_at_the_edges_of_pieces_is_no_part_of_an_answer():
    text = "a  b \n"
    edges = edges_of(cut_of((0, 1, True), (1, 2, True), (2, 5, True), (5, 6, True)), text)
    assert (edges.begins[2], edges.ends[2]) == (3, 4)
    assert text[edges.begins[0] : edges.ends[2]] == "a  b"
    assert edges.begins[1] >= edges.ends[1]  # nothing but a space
    assert edges.begins[3] >= edges.ends[3]


def test_the_pieces_of_an_answer_are_all_that_it_touches():
    cut = cut_of((0, 3, True), (4, 10, True), (10, 11, False), (12, 15, True))  # the norman ##s won
    assert token_span_of(cut, 4, 11) == (1, 2)
    assert token_span_of(cut, 5, 9) == (1, 1)
    assert token_span_of(cut, 0, 15) == (0, 3)
    assert token_span_of(cut, 10, 12) == (2, 2)
    assert token_span_of(cut, 11, 12) is None  # the space
