"""Question answering: exact match and F1 by hand and by a reference implementation; the best threshold."""

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
# Few values, so that differences and sums of scores are often equal.
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
        ("the-end", "theend"),  # punctuation is removed without a gap, so there is no article
        ("rock 'n' the roll!", "rock n roll"),
        ("“the” end", "“ ” end"),  # only ASCII punctuation is removed; so is the article between the quotes
        ("Thermal", "thermal"),
        ("A.", ""),
        ("", ""),
    ],
)
def test_normalization_removes_case_punctuation_articles_and_spaces(answer: str, expected: str):
    assert normalize_answer(answer) == expected


def test_f1_counts_common_words_with_multiplicity():
    # predicted: big cat cat; gold: cat cat cat sat; common: cat cat; precision 2 / 3, recall 2 / 4
    assert score_squad1("The big cat, cat", ["cat cat cat sat"]) == AnswerScore(0.0, pytest.approx(4 / 7))


def test_the_best_of_several_gold_answers_counts():
    assert score_squad1("Denver Broncos", ["Carolina", "The Denver Broncos", "Broncos"]) == AnswerScore(1.0, 1.0)
    assert score_squad1("Broncos team", ["Denver Broncos", "Broncos"]) == AnswerScore(0.0, pytest.approx(2 / 3))


def test_empty_answers_have_f1_one_in_squad_2_and_zero_in_squad_1():
    assert score_squad1("the", ["a"]) == AnswerScore(1.0, 0.0)
    assert score_squad2("the", [""]) == AnswerScore(1.0, 1.0)
    assert score_squad2("", ["a"]) == AnswerScore(1.0, 1.0)


def test_without_a_gold_answer_only_no_answer_is_correct():
    assert score_squad2("", []) == AnswerScore(1.0, 1.0)
    assert score_squad2("Denver", []) == AnswerScore(0.0, 0.0)
    assert score_squad2("", ["Denver"]) == AnswerScore(0.0, 0.0)


def test_an_empty_gold_answer_is_ignored_beside_others():
    assert score_squad2("", ["the", "cat"]) == AnswerScore(0.0, 0.0)


@pytest.mark.parametrize("score", [score_squad1, score_cmrc])
def test_a_question_without_an_answer_raises_an_error_in_squad_1_and_cmrc(score):
    with pytest.raises(InputError, match="squad2"):
        score("Denver", [])


def reference_words(answer: str) -> list[str]:
    """The normalized words of an answer, without regular expressions."""
    characters = [
        character
        for character in answer.lower()
        if character.isalnum() or character.isspace() or not character.isascii()
    ]
    text = ""
    for is_word, run in itertools.groupby(characters, key=str.isalnum):
        word = "".join(run)
        text += " " if is_word and word in ("a", "an", "the") else word
    return text.split()


def reference_f1(predicted: list[str], gold: list[str]) -> float:
    remaining, common = list(gold), 0
    for word in predicted:
        if word in remaining:
            remaining.remove(word)
            common += 1
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(gold)
    return 2 * precision * recall / (precision + recall)


@given(ENGLISH, st.lists(ENGLISH, min_size=1, max_size=3))
def test_squad_1_equals_the_reference_implementation(prediction: str, answers: list[str]):
    predicted, gold = reference_words(prediction), [reference_words(answer) for answer in answers]
    score = score_squad1(prediction, answers)
    assert score.exact == float(predicted in gold)
    assert score.f1 == pytest.approx(max(reference_f1(predicted, words) for words in gold))


@given(ENGLISH, st.lists(ENGLISH, max_size=3))
def test_squad_2_equals_the_reference_implementation(prediction: str, answers: list[str]):
    predicted, gold = reference_words(prediction), [words for words in map(reference_words, answers) if words] or [[]]
    score = score_squad2(prediction, answers)
    assert score.exact == float(predicted in gold)
    assert score.f1 == pytest.approx(max(float(predicted == words) or reference_f1(predicted, words) for words in gold))


# --- CMRC 2018 -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("《我》，好。", "我 好"),
        ("NBA球星Kobe Bryant", "nba 球 星 kobe bryant"),
        ("X-Ray 10:30", "xray 1030"),  # punctuation is removed without a gap
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
def test_chinese_is_split_into_characters_and_the_rest_into_words(text: str, expected: str):
    assert chinese_words(text) == expected.split()


def test_cmrc_f1_uses_the_longest_common_run():
    # 我爱 and 京 are common, but not contiguous: the run is 2 of 4 predicted and 2 of 5 gold
    assert score_cmrc("我爱东京", ["我爱北平京"]) == AnswerScore(0.0, pytest.approx(2 * 2 / 9))


def test_the_longest_run_need_not_be_the_first():
    # 一二 comes first, 三四五 is longer
    assert score_cmrc("一二x三四五", ["三四五，一二"]) == AnswerScore(0.0, pytest.approx(2 * 3 / 11))


def test_cmrc_exact_match_ignores_punctuation_and_case_but_not_spaces():
    assert score_cmrc("《NBA》球员。", ["nba球员"]) == AnswerScore(1.0, 1.0)
    assert score_cmrc("kobe  bryant", ["kobe bryant"]) == AnswerScore(0.0, 1.0)


def test_empty_cmrc_answers_match_with_f1_zero():
    assert score_cmrc("。", ["，"]) == AnswerScore(1.0, 0.0)


@given(CHINESE, st.lists(CHINESE, min_size=1, max_size=3))
def test_the_longest_run_equals_an_exhaustive_search(prediction: str, answers: list[str]):
    def runs(words: list[str]) -> set[tuple[str, ...]]:
        return {tuple(words[first:last]) for last in range(len(words) + 1) for first in range(last)}

    predicted = chinese_words(prediction)
    expected = 0.0
    for answer in answers:
        gold = chinese_words(answer)
        longest = max((len(run) for run in runs(predicted) & runs(gold)), default=0)
        if longest:
            expected = max(expected, 2 / (len(predicted) / longest + len(gold) / longest))
    assert score_cmrc(prediction, answers).f1 == pytest.approx(expected)


# --- Sums and thresholds -------------------------------------------------------------------------


def test_a_tally_averages_over_questions():
    tally = AnswerTally("squad1")
    tally.add("the cat", ["cat"])
    tally.add("dog", ["cat"])
    tally.add("black cat", ["cat"])
    tally.add("", ["cat"])
    assert tally.scores() == {"exact_match": 1 / 4, "f1": pytest.approx((1 + 2 / 3) / 4)}


def test_an_unknown_rule_raises_an_error():
    with pytest.raises(SettingsError, match="squad1, squad2, cmrc2018"):
        AnswerTally("drcd")


@pytest.mark.parametrize(
    "call", [AnswerTally("squad1").scores, NoAnswerTally().best_threshold, lambda: NoAnswerTally().scores(0)]
)
def test_no_questions_raise_an_error(call):
    with pytest.raises(InputError, match="there are no questions"):
        call()


@pytest.fixture
def four_questions() -> NoAnswerTally:
    tally = NoAnswerTally()
    tally.add("the cat", ["cat"], -3.0)  # correct
    tally.add("dog", [], -1.0)  # has no answer
    tally.add("black cat", ["cat"], 0.5)  # F1 2 / 3
    tally.add("mouse", [], 2.0)  # has no answer
    return tally


def test_above_the_threshold_the_prediction_is_no_answer(four_questions: NoAnswerTally):
    assert four_questions.scores(0.5) == {  # only the last is no answer: a difference at the threshold is not above it
        "exact_match": 2 / 4,
        "f1": pytest.approx((1 + 0 + 2 / 3 + 1) / 4),
        "has_answer_exact_match": 1 / 2,
        "has_answer_f1": pytest.approx((1 + 2 / 3) / 2),
        "no_answer_exact_match": 1 / 2,
        "no_answer_f1": 1 / 2,
    }
    assert four_questions.scores(-2.0)["f1"] == 3 / 4  # correct, no answer, wrongly no answer, no answer
    assert four_questions.scores(-math.inf)["has_answer_f1"] == 0.0


def test_without_impossible_questions_there_is_no_no_answer_score():
    tally = NoAnswerTally()
    tally.add("cat", ["cat"], 0.0)
    assert sorted(tally.scores(0.0)) == ["exact_match", "f1", "has_answer_exact_match", "has_answer_f1"]


def test_the_best_threshold_by_hand(four_questions: NoAnswerTally):
    # no answer everywhere scores 2; then +1, -1, +2/3, -1: sums 3, 2, 2 2/3, 1 2/3; the best is between -3 and -1
    assert four_questions.best_threshold("f1") == Threshold(-2.0, 3 / 4)
    assert four_questions.best_threshold("exact_match") == Threshold(-2.0, 3 / 4)


@pytest.mark.parametrize("noise", [-1e-3, 1e-3])
@pytest.mark.parametrize("answers", [(["cat"], []), ([], ["cat"]), (["cat"], ["cat"])])
def test_the_threshold_is_robust_to_noise(answers: tuple[list[str], ...], noise: float):
    dev, test = NoAnswerTally(), NoAnswerTally()
    for difference, gold in zip((0.25, 0.5), answers, strict=True):
        dev.add("cat", gold, difference)
        test.add("cat", gold, difference + noise)
    assert test.scores(dev.best_threshold().value)["f1"] == dev.best_threshold().score


def test_the_threshold_separates_adjacent_floats():
    upper = float(np.nextafter(1.0, 2.0))
    arrays = (np.array([1.0, upper]), np.array([1.0, 0.0]), np.array([True, False]))
    assert best_threshold(*arrays) == Threshold(1.0, 1.0)


def test_if_no_span_scores_the_threshold_is_below_all_differences():
    tally = NoAnswerTally()
    tally.add("dog", [], -1.0)
    tally.add("dog", ["cat"], 2.0)
    best = tally.best_threshold()
    assert best.score == 1 / 2
    assert best.value < -1.0
    assert tally.scores(best.value)["f1"] == best.score


def test_equal_differences_are_not_separated():
    # Separated, the first alone would be answered: a sum of 2. Together they score 1, as much as no answer.
    arrays = (np.array([0.5, 0.5]), np.array([1.0, 0.0]), np.array([True, False]))
    assert official_best_threshold(*arrays, np.array([True, True])) == Threshold(0.5, 1.0)
    best = best_threshold(*arrays)
    assert best.score == 1 / 2
    assert best.value < 0.5


@given(QUESTIONS)
def test_no_threshold_is_better_than_the_best(questions: list[tuple[float, float, bool]]):
    def mean(threshold: float) -> float:
        question_scores = [
            float(not answerable) if difference > threshold else score if answerable else 0.0
            for difference, score, answerable in questions
        ]
        return sum(question_scores) / len(question_scores)

    differences, scores, answerable = map(np.array, zip(*questions, strict=True))
    best = best_threshold(differences, np.where(answerable, scores, 0.0), answerable)
    assert best.score == pytest.approx(mean(best.value))
    assert best.score == pytest.approx(max(mean(value) for value in (-9.0, *differences)))


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.25, 1.0]), st.booleans()), min_size=1, max_size=7))
def test_without_ties_the_best_score_equals_the_official_one(questions: list[tuple[float, bool]]):
    scores, answerable = map(np.array, zip(*questions, strict=True))
    differences = np.arange(len(questions)) * 0.1
    arrays = (differences, np.where(answerable, scores, 0.0), answerable)
    best, official = best_threshold(*arrays), official_best_threshold(*arrays, np.ones(len(questions), dtype=bool))
    assert best.score == pytest.approx(official.score)
    if official.score > np.mean(~answerable):
        assert (differences > best.value).tolist() == (differences > official.value).tolist()
    else:
        assert official.value == 0.0  # the initial value of the official script
        assert best.value < 0.0
