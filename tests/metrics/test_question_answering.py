"""Answers to questions: exact match and F1 by hand and by a second derivation of the rules; the best threshold."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertworks.errors import InputError, SettingsError
from bertworks.metrics.question_answering import (
    AnswerScore,
    AnswerTally,
    NoAnswerTally,
    Threshold,
    best_threshold,
    chinese_words,
    normalize_answer,
    official_best_threshold,
    score_cmrc,
    score_squad1,
    score_squad2,
)

ENGLISH = st.text(alphabet="aAnthe THE-.,'_xé“–1 \n\t", max_size=14) | st.lists(
    st.sampled_from(["the", "a", "An", "cat", "Cat,", "dog.", "x-ray", "1999", "–", ""]), max_size=5
).map(" ".join)
CHINESE = st.text(alphabet="我你好，。《》（）- ab1", max_size=12)
# Few values, so that differences are often equal and scores often add up to the same.
QUESTIONS = st.lists(
    st.tuples(st.sampled_from([-2.0, -0.5, 0.0, 1.0, 3.0]), st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.booleans()),
    min_size=1,
    max_size=7,
)


# --- SQuAD ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The  Eiffel\tTower.", "eiffel tower"),
        ("an apple a day", "apple day"),
        ("U.S.A.", "usa"),
        ("the-end", "theend"),  # punctuation leaves no gap, so there is no article
        ("rock 'n' the roll!", "rock n roll"),
        ("“the” end", "“ ” end"),  # only ASCII punctuation goes; the article between the quotes does too
        ("Thermal", "thermal"),
        ("A.", ""),
        ("", ""),
    ],
)
def test_answers_are_compared_without_case_punctuation_articles_and_spaces(answer: str, expected: str):
    assert normalize_answer(answer) == expected


def test_f1_counts_common_words_as_often_as_both_have_them():
    # predicted: big cat cat; right: cat cat cat sat; common: cat cat; 2 / 3 precise, 2 / 4 complete
    assert score_squad1("The big cat, cat", ["cat cat cat sat"]) == AnswerScore(0.0, pytest.approx(4 / 7))


def test_of_several_right_answers_the_best_counts():
    assert score_squad1("Denver Broncos", ["Carolina", "The Denver Broncos", "Broncos"]) == AnswerScore(1.0, 1.0)
    assert score_squad1("Broncos team", ["Denver Broncos", "Broncos"]) == AnswerScore(0.0, pytest.approx(2 / 3))


def test_answers_without_a_word_agree_in_squad_2_but_share_no_word_in_squad_1():
    assert score_squad1("the", ["a"]) == AnswerScore(1.0, 0.0)
    assert score_squad2("the", [""]) == AnswerScore(1.0, 1.0)
    assert score_squad2("", ["a"]) == AnswerScore(1.0, 1.0)


def test_without_a_right_answer_only_silence_is_right():
    assert score_squad2("", []) == AnswerScore(1.0, 1.0)
    assert score_squad2("Denver", []) == AnswerScore(0.0, 0.0)
    assert score_squad2("", ["Denver"]) == AnswerScore(0.0, 0.0)


def test_a_right_answer_without_a_word_does_not_count_beside_others():
    assert score_squad2("", ["the", "cat"]) == AnswerScore(0.0, 0.0)


@pytest.mark.parametrize("score", [score_squad1, score_cmrc])
def test_a_question_without_an_answer_is_refused_where_the_rule_knows_none(score):
    with pytest.raises(InputError, match="squad2"):
        score("Denver", [])


def words_again(answer: str) -> list[str]:
    """The words of an answer, derived without an expression: runs of letters and digits that are articles go."""
    kept = [sign for sign in answer.lower() if sign.isalnum() or sign.isspace() or not sign.isascii()]
    text = ""
    for is_word, run in itertools.groupby(kept, key=str.isalnum):
        joined = "".join(run)
        text += " " if is_word and joined in ("a", "an", "the") else joined
    return text.split()


def f1_again(ours: list[str], theirs: list[str]) -> float:
    left, common = list(theirs), 0
    for word in ours:
        if word in left:
            left.remove(word)
            common += 1
    if not common:
        return 0.0
    precision, recall = common / len(ours), common / len(theirs)
    return 2 * precision * recall / (precision + recall)


@given(ENGLISH, st.lists(ENGLISH, min_size=1, max_size=3))
def test_squad_1_equals_a_second_derivation(prediction: str, answers: list[str]):
    ours, theirs = words_again(prediction), [words_again(answer) for answer in answers]
    score = score_squad1(prediction, answers)
    assert score.exact == float(ours in theirs)
    assert score.f1 == pytest.approx(max(f1_again(ours, words) for words in theirs))


@given(ENGLISH, st.lists(ENGLISH, max_size=3))
def test_squad_2_equals_a_second_derivation(prediction: str, answers: list[str]):
    ours, theirs = words_again(prediction), [words for words in map(words_again, answers) if words] or [[]]
    score = score_squad2(prediction, answers)
    assert score.exact == float(ours in theirs)
    assert score.f1 == pytest.approx(max(float(ours == words) or f1_again(ours, words) for words in theirs))


# --- CMRC 2018 -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("《我》，好。", "我 好"),
        ("NBA球星Kobe Bryant", "nba 球 星 kobe bryant"),
        ("X-Ray 10:30", "xray 1030"),  # what is taken away leaves no gap
        ("1,000人", "1,000 人"),
        ("a,b", "a , b"),
        ("Paris, 1995.", "paris , 1995 ."),
        ("dtz inc.", "dtz inc ."),
        ("j. stigler (usa).", "j. stigler ( usa ) ."),
        ("3.5%、$20", "3.5 % $ 20"),
        ("at&t", "at & t"),
        ("50—100", "50 — 100"),
        ("等等…", "等 等 …"),
        ("wait...what", "wait ... what"),
        ('("Artemisia annua")', '( “ artemisia annua " )'),
        ('学名""', "学 名 “ “"),
        ('" sect. "x', '“ sect. “ x'),
        ("Lloyd's", "lloyd 's"),
        ("'s", "'s"),
        ("I don't wanna cannot", "i do n't wan na can not"),
        ("'quoted'", "' quoted '"),
        ("", ""),
        ("，。", ""),
    ],
)  # fmt: skip
def test_chinese_is_cut_by_character_and_the_rest_by_word(text: str, expected: str):
    assert chinese_words(text) == expected.split()


def test_chinese_f1_counts_the_longest_unbroken_run():
    # 我爱 and 京 are common, but apart: the run is 2 of 4 predicted and 2 of 5 right
    assert score_cmrc("我爱东京", ["我爱北平京"]) == AnswerScore(0.0, pytest.approx(2 * 2 / 9))


def test_the_longest_run_need_not_be_the_first():
    # 一二 comes first, 三四五 is longer
    assert score_cmrc("一二x三四五", ["三四五，一二"]) == AnswerScore(0.0, pytest.approx(2 * 3 / 11))


def test_chinese_answers_match_without_punctuation_and_case_but_with_their_spaces():
    assert score_cmrc("《NBA》球员。", ["nba球员"]) == AnswerScore(1.0, 1.0)
    assert score_cmrc("kobe  bryant", ["kobe bryant"]) == AnswerScore(0.0, 1.0)


def test_chinese_answers_without_a_word_match_but_share_no_word():
    assert score_cmrc("。", ["，"]) == AnswerScore(1.0, 0.0)


@given(CHINESE, st.lists(CHINESE, min_size=1, max_size=3))
def test_the_longest_run_equals_a_search_of_all_runs(prediction: str, answers: list[str]):
    def runs(words: list[str]) -> set[tuple[str, ...]]:
        return {tuple(words[first:last]) for last in range(len(words) + 1) for first in range(last)}

    ours = chinese_words(prediction)
    expected = 0.0
    for answer in answers:
        theirs = chinese_words(answer)
        longest = max((len(run) for run in runs(ours) & runs(theirs)), default=0)
        if longest:
            expected = max(expected, 2 / (len(ours) / longest + len(theirs) / longest))
    assert score_cmrc(prediction, answers).f1 == pytest.approx(expected)


# --- Sums and thresholds -------------------------------------------------------------------------


def test_a_tally_means_over_questions():
    tally = AnswerTally("squad1")
    tally.add("the cat", ["cat"])
    tally.add("dog", ["cat"])
    tally.add("black cat", ["cat"])
    tally.add("", ["cat"])
    assert tally.scores() == {"exact_match": 1 / 4, "f1": pytest.approx((1 + 2 / 3) / 4)}


def test_an_unknown_rule_is_refused_with_the_known_ones():
    with pytest.raises(SettingsError, match="squad1, squad2, cmrc2018"):
        AnswerTally("drcd")


@pytest.mark.parametrize(
    "ask", [AnswerTally("squad1").scores, NoAnswerTally().best_threshold, lambda: NoAnswerTally().scores(0)]
)
def test_scores_of_no_question_are_refused(ask):
    with pytest.raises(InputError, match="no question"):
        ask()


@pytest.fixture
def four_questions() -> NoAnswerTally:
    tally = NoAnswerTally()
    tally.add("the cat", ["cat"], -3.0)  # right
    tally.add("dog", [], -1.0)  # there is no answer
    tally.add("black cat", ["cat"], 0.5)  # F1 2 / 3
    tally.add("mouse", [], 2.0)  # there is no answer
    return tally


def test_above_the_threshold_nothing_is_answered(four_questions: NoAnswerTally):
    assert four_questions.scores(0.5) == {  # only the last is silent: a difference at the threshold is not above it
        "exact_match": 2 / 4,
        "f1": pytest.approx((1 + 0 + 2 / 3 + 1) / 4),
        "has_answer_exact_match": 1 / 2,
        "has_answer_f1": pytest.approx((1 + 2 / 3) / 2),
        "no_answer_exact_match": 1 / 2,
        "no_answer_f1": 1 / 2,
    }
    assert four_questions.scores(-2.0)["f1"] == 3 / 4  # right, silent, wrongly silent, silent
    assert four_questions.scores(-math.inf)["has_answer_f1"] == 0.0


def test_a_set_without_unanswerable_questions_has_no_score_of_them():
    tally = NoAnswerTally()
    tally.add("cat", ["cat"], 0.0)
    assert sorted(tally.scores(0.0)) == ["exact_match", "f1", "has_answer_exact_match", "has_answer_f1"]


def test_the_best_threshold_gains_most(four_questions: NoAnswerTally):
    # silence earns 2; then +1, -1, +2/3, -1: the sums are 3, 2, 2 2/3, 1 2/3; answered at -3 and no more at -1
    assert four_questions.best_threshold("f1") == Threshold(-2.0, 3 / 4)
    assert four_questions.best_threshold("exact_match") == Threshold(-2.0, 3 / 4)


@pytest.mark.parametrize("noise", [-1e-3, 1e-3])
@pytest.mark.parametrize("answers", [(["cat"], []), ([], ["cat"]), (["cat"], ["cat"])])
def test_the_last_digits_of_a_difference_decide_nothing(answers: tuple[list[str], ...], noise: float):
    tuned, later = NoAnswerTally(), NoAnswerTally()
    for difference, right in zip((0.25, 0.5), answers, strict=True):
        tuned.add("cat", right, difference)
        later.add("cat", right, difference + noise)
    assert later.scores(tuned.best_threshold().value)["f1"] == tuned.best_threshold().score


def test_between_neighbouring_numbers_the_threshold_still_parts_them():
    upper = float(np.nextafter(1.0, 2.0))
    arrays = (np.array([1.0, upper]), np.array([1.0, 0.0]), np.array([True, False]))
    assert best_threshold(*arrays) == Threshold(1.0, 1.0)


def test_where_no_span_is_worth_giving_the_threshold_silences_all():
    tally = NoAnswerTally()
    tally.add("dog", [], -1.0)
    tally.add("dog", ["cat"], 2.0)
    best = tally.best_threshold()
    assert best.score == 1 / 2
    assert best.value < -1.0
    assert tally.scores(best.value)["f1"] == best.score


def test_questions_with_equal_differences_are_not_parted():
    # Parted, the first alone would be answered: a sum of 2. Together they earn 1, as much as silence.
    arrays = (np.array([0.5, 0.5]), np.array([1.0, 0.0]), np.array([True, False]))
    assert official_best_threshold(*arrays, np.array([True, True])) == Threshold(0.5, 1.0)
    best = best_threshold(*arrays)
    assert best.score == 1 / 2
    assert best.value < 0.5


@given(QUESTIONS)
def test_no_threshold_is_better_than_the_best(questions: list[tuple[float, float, bool]]):
    def mean(threshold: float) -> float:
        gained = [
            float(not answerable) if difference > threshold else score if answerable else 0.0
            for difference, score, answerable in questions
        ]
        return sum(gained) / len(gained)

    differences, scores, answerable = map(np.array, zip(*questions, strict=True))
    best = best_threshold(differences, np.where(answerable, scores, 0.0), answerable)
    assert best.score == pytest.approx(mean(best.value))
    assert best.score == pytest.approx(max(mean(value) for value in (-9.0, *differences)))


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.25, 1.0]), st.booleans()), min_size=1, max_size=7))
def test_without_equal_differences_the_best_score_is_the_official_one(questions: list[tuple[float, bool]]):
    scores, answerable = map(np.array, zip(*questions, strict=True))
    differences = np.arange(len(questions)) * 0.1
    arrays = (differences, np.where(answerable, scores, 0.0), answerable)
    ours, theirs = best_threshold(*arrays), official_best_threshold(*arrays, np.ones(len(questions), dtype=bool))
    assert ours.score == pytest.approx(theirs.score)
    if theirs.score > np.mean(~answerable):
        assert (differences > ours.value).tolist() == (differences > theirs.value).tolist()
    else:
        assert theirs.value == 0.0  # what the official script starts with
        assert ours.value < 0.0
