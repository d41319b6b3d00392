"""A predicted and the gold answers in, exact match and F1 out, by the rules of SQuAD 1.1, SQuAD 2.0 and CMRC 2018.

Each dataset has its own rule for exact match and overlap; of several gold answers the best counts. Scores are in 0..1:
a hundredth of what the official scripts print.

In SQuAD 2.0 some questions have no answer, and a model gives for each question its best span and a difference: the
score of no answer minus that of the span. The prediction is "no answer" where the difference is above a threshold.
"""

from __future__ import annotations

import re
import string
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.errors import InputError, SettingsError

Numbers = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class AnswerScore:
    """The score of one question: `exact` is 0 or 1, `f1` is the overlap in words."""

    exact: float
    f1: float


@dataclass(frozen=True, slots=True)
class Threshold:
    """The prediction is "no answer" where the difference is above `value`; the mean score is then `score`."""

    value: float
    score: float


# --- SQuAD: words in any order -------------------------------------------------------------------

_PUNCTUATION_TABLE = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalize_answer(answer: str) -> str:
    """Return an English answer in lower case without punctuation, articles and extra white space."""
    # Punctuation is removed first, without a gap: "the-end" becomes "theend" and has no article.
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION_TABLE)).split())


def score_squad1(prediction: str, answers: Sequence[str]) -> AnswerScore:
    """Score by the rule of SQuAD 1.1. If normalization leaves no word, the F1 is 0."""
    return _best_score(_score_words(prediction, answer, both_empty=0.0) for answer in _require_answers(answers))


def score_squad2(prediction: str, answers: Sequence[str]) -> AnswerScore:
    """Score by the rule of SQuAD 2.0. Without a gold answer of at least one word, only no answer is correct."""
    gold = [answer for answer in answers if normalize_answer(answer)] or [""]
    return _best_score(_score_words(prediction, answer, both_empty=1.0) for answer in gold)


def _score_words(prediction: str, answer: str, both_empty: float) -> AnswerScore:
    predicted, gold = normalize_answer(prediction).split(), normalize_answer(answer).split()
    exact = float(predicted == gold)
    if not predicted and not gold:
        return AnswerScore(exact, both_empty)
    return AnswerScore(exact, _f1((Counter(predicted) & Counter(gold)).total(), len(predicted), len(gold)))


# --- CMRC 2018: the longest run of characters and words ------------------------------------------

_CMRC_PUNCTUATION_TABLE = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
# Runs of anything but the Chinese characters that the official script knows.
_CMRC_PARTS = re.compile(r"[\u4e00-\u9fa5]|[^\u4e00-\u9fa5]+")
# Other runs are split as by NLTK's word_tokenize, which the official script calls: punctuation marks are tokens; commas
# stay inside numbers and full stops inside words, but not at the end of the run; an opening double quote differs
# from a closing one.
_SIGNS = r";@\#$%&?!()\[\]{}<>\"«»‘„‒–—―"
_OPENING_QUOTE = r"(?:^|(?<=[\ (\[{<]))\""
_LAST_STOP = rf"\.(?=(?: (?!{_OPENING_QUOTE})[\])}}>\"'»\ ] )*\s*$)"
_CMRC_WORDS = re.compile(
    rf"""(?P<opening> {_OPENING_QUOTE}"* )
    | \.{{2,}} | [{_SIGNS}] | ,(?!\d) | {_LAST_STOP}
    | (?: [^\s.,{_SIGNS}] | ,(?=\d) | (?!{_LAST_STOP})\.(?!\.) )+
    """,
    re.VERBOSE,
)
# English words that are split in two: "isn't", "lloyd's", "'quoted'", "cannot".
_CMRC_HALVES = re.compile(
    r"^'(?=\w)(?!(?:re|ve|ll|m|t|s|d|n)\b)|(?<=[^'])(?:'s|'m|'d|'ll|'re|'ve|n't|')$"
    r"|(?<=^can)not$|(?<=^gon)na$|(?<=^wan)na$|(?<=^got)ta$|(?<=^gim)me$|(?<=^lem)me$"
)


def score_cmrc(prediction: str, answers: Sequence[str]) -> AnswerScore:
    """Score by the rule of CMRC 2018: F1 over the longest common run of characters and words."""
    return _best_score(_score_runs(prediction, answer) for answer in _require_answers(answers))


def chinese_words(text: str) -> list[str]:
    """Split into Chinese characters and other words, in lower case without punctuation."""
    words: list[str] = []
    for part in _CMRC_PARTS.findall(_strip_cmrc_punctuation(text)):
        for word in _CMRC_WORDS.finditer(part):
            opening = word["opening"]
            words += ["“"] * len(opening) if opening else _CMRC_HALVES.sub(r" \g<0> ", word[0]).split()
    return words


def _strip_cmrc_punctuation(text: str) -> str:
    return text.lower().strip().translate(_CMRC_PUNCTUATION_TABLE)


def _score_runs(prediction: str, answer: str) -> AnswerScore:
    predicted, gold = chinese_words(prediction), chinese_words(answer)
    exact = float(_strip_cmrc_punctuation(prediction) == _strip_cmrc_punctuation(answer))
    return AnswerScore(exact, _f1(_longest_run(predicted, gold), len(predicted), len(gold)))


def _longest_run(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest common contiguous run of words."""
    longest = 0
    lengths = [0] * (len(second) + 1)  # lengths[j]: of the run that ends with this word and word j - 1 of second
    for word in first:
        lengths = [0] + [lengths[index] + 1 if word == second_word else 0 for index, second_word in enumerate(second)]
        longest = max(longest, *lengths)
    return longest


# --- All datasets ------------------------------------------------------------------------------------

RULES: dict[str, Callable[[str, Sequence[str]], AnswerScore]] = {
    "squad1": score_squad1,
    "squad2": score_squad2,
    "cmrc2018": score_cmrc,
}


class AnswerTally:
    """Running sums of answer scores, by a rule of RULES."""

    def __init__(self, rule: str) -> None:
        if rule not in RULES:
            raise SettingsError(f"there is no scoring rule '{rule}'; choose one of: {', '.join(RULES)}")
        self._rule = RULES[rule]
        self._exact = self._f1 = 0.0
        self._total = 0

    def add(self, prediction: str, answers: Sequence[str]) -> None:
        """Add one question; no answer is an empty prediction."""
        score = self._rule(prediction, answers)
        self._exact += score.exact
        self._f1 += score.f1
        self._total += 1

    def scores(self) -> dict[str, float]:
        """Return exact match and F1 over all questions."""
        _check_num_questions(self._total)
        return {"exact_match": self._exact / self._total, "f1": self._f1 / self._total}


class NoAnswerTally:
    """The scores of SQuAD 2.0 for any threshold: 25 bytes per question."""

    def __init__(self) -> None:
        self._differences, self._exact, self._f1 = array("d"), array("d"), array("d")
        self._answerable = bytearray()

    def add(self, prediction: str, answers: Sequence[str], difference: float) -> None:
        """Add the best span of a question, its gold answers (none if it has no answer) and the difference."""
        score = score_squad2(prediction, answers)
        self._differences.append(difference)
        self._exact.append(score.exact)
        self._f1.append(score.f1)
        self._answerable.append(bool(answers))

    def scores(self, threshold: float) -> dict[str, float]:
        """Return exact match and F1: over all questions, over those with an answer, and over those without."""
        answerable = self._has_answer()
        is_unanswered = np.array(self._differences) > threshold
        exact = np.where(is_unanswered, ~answerable, np.array(self._exact))
        f1 = np.where(is_unanswered, ~answerable, np.array(self._f1))
        scores = {"exact_match": float(exact.mean()), "f1": float(f1.mean())}
        for name, subset in (("has_answer", answerable), ("no_answer", ~answerable)):
            if subset.any():
                scores[f"{name}_exact_match"] = float(exact[subset].mean())
                scores[f"{name}_f1"] = float(f1[subset].mean())
        return scores

    def best_threshold(self, metric: str = "f1") -> Threshold:
        """Return the threshold with the highest exact_match or f1."""
        scores = {"exact_match": self._exact, "f1": self._f1}[metric]
        return best_threshold(np.array(self._differences), np.array(scores), self._has_answer())

    def _has_answer(self) -> npt.NDArray[np.bool_]:
        _check_num_questions(len(self._answerable))
        return np.frombuffer(bytes(self._answerable), dtype=np.bool_)


def best_threshold(differences: Numbers, scores: Numbers, answerable: Numbers) -> Threshold:
    """Return the threshold with the highest mean score, the lowest of several, and that score.

    `scores` are those of the spans alone, `answerable` says which questions have an answer; all are (N,). It is the
    search of the official script, except for three things that make `score` what the threshold really gives: equal
    differences are never separated, a span without a word counts as no answer, and if no span is worth giving, the
    threshold is below all differences instead of 0. And it is in the middle between the last question that is answered
    and the first that is not, so that rounding, which differs between batches and engines, has no effect.
    """
    _check_num_questions(len(differences))
    order = np.argsort(differences, kind="stable")
    ordered = differences[order].astype(np.float64)
    # Starting with "no answer" everywhere, each answered question changes the sum by its score minus that of no answer.
    has_no_answer = ~answerable[order].astype(bool)
    sums = np.cumsum(np.concatenate([[has_no_answer.sum()], scores[order].astype(np.float64) - has_no_answer]))
    last_of_equals = np.concatenate([[True], ordered[1:] != ordered[:-1], [True]])
    best = int(np.argmax(np.where(last_of_equals, sums, -np.inf)))
    if best == 0:
        value = ordered[0] - 1
    elif best == len(ordered):
        value = ordered[-1] + 1
    else:  # the middle of adjacent floats may round to the upper one
        value = min((ordered[best - 1] + ordered[best]) / 2, np.nextafter(ordered[best], -np.inf))
    return Threshold(float(value), float(sums[best]) / len(ordered))


def official_best_threshold(
    differences: Numbers, scores: Numbers, answerable: Numbers, is_answered: Numbers
) -> Threshold:
    """Return what the official script of SQuAD 2.0 prints as best_exact or best_f1 (a hundredth) and its threshold.

    For comparison with published scores; `is_answered` says which predicted spans are not empty. If differences are
    equal, no threshold may reach the score.
    """
    _check_num_questions(len(differences))
    order = np.argsort(differences, kind="stable")
    has_no_answer = ~answerable[order].astype(bool)
    gains = np.where(has_no_answer, -is_answered[order].astype(np.float64), scores[order])
    sums = np.cumsum(np.concatenate([[has_no_answer.sum()], gains]))
    best = int(np.argmax(sums))
    return Threshold(float(differences[order[best - 1]]) if best else 0.0, float(sums[best]) / len(order))


def _best_score(scores: Iterable[AnswerScore]) -> AnswerScore:
    """Return the best exact match and the best F1 over the gold answers, each separately."""
    all_scores = list(scores)
    return AnswerScore(max(score.exact for score in all_scores), max(score.f1 for score in all_scores))


def _f1(num_common: int, num_predicted: int, num_gold: int) -> float:
    return 2 * num_common / (num_predicted + num_gold) if num_common else 0.0


def _require_answers(answers: Sequence[str]) -> Sequence[str]:
    if not answers:
        raise InputError(
            "a question has no gold answer, which SQuAD 1.1 and CMRC 2018 do not allow; score it as SQuAD 2.0 (squad2) "
            "or remove it from the file"
        )
    return answers


def _check_num_questions(num_questions: int) -> None:
    if num_questions == 0:
        raise InputError("there are no questions to score; give a file with at least one question")
