"""A predicted answer and the right ones in, exact match and F1 out, by the rules of SQuAD 1.1, SQuAD 2.0 and CMRC 2018.

Each set has a rule of its own for when two answers are the same and how far they are alike; of several right answers
the best counts. Scores lie in 0..1: a hundredth of what the official scripts print.

In SQuAD 2.0 some questions have no answer, and a model gives for each question its best span and a difference: the
score of no answer less that of the span. It says "no answer" where the difference is above a threshold.
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
    """How well one question was answered: `exact` is 0 or 1, `f1` is the overlap in words."""

    exact: float
    f1: float


@dataclass(frozen=True, slots=True)
class Threshold:
    """Say "no answer" where the difference is above `value`; the mean score is then `score`."""

    value: float
    score: float


# --- SQuAD: words in any order -------------------------------------------------------------------

_PUNCTUATION_TABLE = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalize_answer(answer: str) -> str:
    """Return an English answer in lower case without punctuation, articles and needless white space."""
    # Punctuation goes first and leaves no gap: "the-end" is one word, "theend", and holds no article.
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION_TABLE)).split())


def score_squad1(prediction: str, answers: Sequence[str]) -> AnswerScore:
    """Score by the rule of SQuAD 1.1. Answers of which no word is left share no word: their F1 is 0."""
    return _best_score(_score_words(prediction, answer, both_empty=0.0) for answer in _require_answers(answers))


def score_squad2(prediction: str, answers: Sequence[str]) -> AnswerScore:
    """Score by the rule of SQuAD 2.0. Without a right answer of at least one word, only no answer is right."""
    right = [answer for answer in answers if normalize_answer(answer)] or [""]
    return _best_score(_score_words(prediction, answer, both_empty=1.0) for answer in right)


def _score_words(prediction: str, answer: str, both_empty: float) -> AnswerScore:
    ours, theirs = normalize_answer(prediction).split(), normalize_answer(answer).split()
    exact = float(ours == theirs)
    if not ours and not theirs:
        return AnswerScore(exact, both_empty)
    return AnswerScore(exact, _f1((Counter(ours) & Counter(theirs)).total(), len(ours), len(theirs)))


# --- CMRC 2018: the longest run of characters and words ------------------------------------------

_CMRC_PUNCTUATION_TABLE = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
# Runs of anything but the Chinese characters that the official script knows.
_CMRC_PARTS = re.compile(r"[\u4e00-\u9fa5]|[^\u4e00-\u9fa5]+")
# The other runs are cut into words as NLTK's word_tokenize does it, which the official script calls: signs stand alone;
# a comma stays inside a number and a full stop inside a word, but not at the end of the run; a double quote that
# opens is another sign than one that closes.
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
# English words that are two: "isn't", "lloyd's", "'quoted'", "cannot".
_CMRC_HALVES = re.compile(
    r"^'(?=\w)(?!(?:re|ve|ll|m|t|s|d|n)\b)|(?<=[^'])(?:'s|'m|'d|'ll|'re|'ve|n't|')$"
    r"|(?<=^can)not$|(?<=^gon)na$|(?<=^wan)na$|(?<=^got)ta$|(?<=^gim)me$|(?<=^lem)me$"
)


def score_cmrc(prediction: str, answers: Sequence[str]) -> AnswerScore:
    """Score by the rule of CMRC 2018: F1 over the longest run of characters and words that both have in common."""
    return _best_score(_score_runs(prediction, answer) for answer in _require_answers(answers))


def chinese_words(text: str) -> list[str]:
    """Return each Chinese character by itself and anything else by the word, in lower case without punctuation."""
    words: list[str] = []
    for part in _CMRC_PARTS.findall(_strip_cmrc_punctuation(text)):
        for word in _CMRC_WORDS.finditer(part):
            opening = word["opening"]
            words += ["“"] * len(opening) if opening else _CMRC_HALVES.sub(r" \g<0> ", word[0]).split()
    return words


def _strip_cmrc_punctuation(text: str) -> str:
    return text.lower().strip().translate(_CMRC_PUNCTUATION_TABLE)


def _score_runs(prediction: str, answer: str) -> AnswerScore:
    ours, theirs = chinese_words(prediction), chinese_words(answer)
    exact = float(_strip_cmrc_punctuation(prediction) == _strip_cmrc_punctuation(answer))
    return AnswerScore(exact, _f1(_longest_run(ours, theirs), len(ours), len(theirs)))


def _longest_run(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest unbroken run of words that stands in both."""
    longest = 0
    ending = [0] * (len(second) + 1)  # ending[j]: of the run that ends with this word of first and word j - 1 of second
    for word in first:
        ending = [0] + [ending[place] + 1 if word == other else 0 for place, other in enumerate(second)]
        longest = max(longest, *ending)
    return longest


# --- All sets ------------------------------------------------------------------------------------

RULES: dict[str, Callable[[str, Sequence[str]], AnswerScore]] = {
    "squad1": score_squad1,
    "squad2": score_squad2,
    "cmrc2018": score_cmrc,
}


class AnswerTally:
    """Running sums of the scores of answers, by the rule of a set (a name in RULES)."""

    def __init__(self, rule: str) -> None:
        if rule not in RULES:
            raise SettingsError(f"there is no rule for scoring answers '{rule}'; choose one of: {', '.join(RULES)}")
        self._rule = RULES[rule]
        self._exact = self._f1 = 0.0
        self._total = 0

    def add(self, prediction: str, answers: Sequence[str]) -> None:
        """Score one question; an unanswered one is an empty prediction."""
        score = self._rule(prediction, answers)
        self._exact += score.exact
        self._f1 += score.f1
        self._total += 1

    def scores(self) -> dict[str, float]:
        """Return exact match and F1 over all questions."""
        _check_num_questions(self._total)
        return {"exact_match": self._exact / self._total, "f1": self._f1 / self._total}


class NoAnswerTally:
    """The scores of SQuAD 2.0 under any threshold: keeps 25 bytes a question."""

    def __init__(self) -> None:
        self._differences, self._exact, self._f1 = array("d"), array("d"), array("d")
        self._answerable = bytearray()

    def add(self, prediction: str, answers: Sequence[str], difference: float) -> None:
        """Take the best span of a question, its right answers (none if it has no answer) and the difference."""
        score = score_squad2(prediction, answers)
        self._differences.append(difference)
        self._exact.append(score.exact)
        self._f1.append(score.f1)
        self._answerable.append(bool(answers))

    def scores(self, threshold: float) -> dict[str, float]:
        """Return exact match and F1: over all questions, over those with an answer, and over those without."""
        answerable = self._has_answer()
        silent = np.array(self._differences) > threshold
        exact = np.where(silent, ~answerable, np.array(self._exact))
        f1 = np.where(silent, ~answerable, np.array(self._f1))
        scores = {"exact_match": float(exact.mean()), "f1": float(f1.mean())}
        for name, which in (("has_answer", answerable), ("no_answer", ~answerable)):
            if which.any():
                scores[f"{name}_exact_match"] = float(exact[which].mean())
                scores[f"{name}_f1"] = float(f1[which].mean())
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
    search of the official script but for three things that make `score` what the threshold really gives: equal
    differences are never parted, a span without a word counts as no answer, and where no span is worth giving the
    threshold lies below all differences instead of at 0. And it lies in the middle between the last question that is
    answered and the first that is not, so that the last digit of a difference, which other batches or another engine
    may give another value, decides nothing.
    """
    _check_num_questions(len(differences))
    order = np.argsort(differences, kind="stable")
    ordered = differences[order].astype(np.float64)
    # From "no answer" everywhere, each question that is answered changes the sum by its score less what silence earned.
    silence = ~answerable[order].astype(bool)
    sums = np.cumsum(np.concatenate([[silence.sum()], scores[order].astype(np.float64) - silence]))
    last_of_equals = np.concatenate([[True], ordered[1:] != ordered[:-1], [True]])
    best = int(np.argmax(np.where(last_of_equals, sums, -np.inf)))
    if best == 0:
        value = ordered[0] - 1
    elif best == len(ordered):
        value = ordered[-1] + 1
    else:  # of neighbouring numbers the middle may be the upper one
        value = min((ordered[best - 1] + ordered[best]) / 2, np.nextafter(ordered[best], -np.inf))
    return Threshold(float(value), float(sums[best]) / len(ordered))


def official_best_threshold(
    differences: Numbers, scores: Numbers, answerable: Numbers, is_answered: Numbers
) -> Threshold:
    """Return what the official script of SQuAD 2.0 prints as best_exact or best_f1 (a hundredth) and its threshold.

    For comparison with published figures; `answered` says which predicted spans are not empty. Where differences are
    equal the score may lie out of reach of any threshold.
    """
    _check_num_questions(len(differences))
    order = np.argsort(differences, kind="stable")
    silence = ~answerable[order].astype(bool)
    gains = np.where(silence, -is_answered[order].astype(np.float64), scores[order])
    sums = np.cumsum(np.concatenate([[silence.sum()], gains]))
    best = int(np.argmax(sums))
    return Threshold(float(differences[order[best - 1]]) if best else 0.0, float(sums[best]) / len(order))


def _best_score(scores: Iterable[AnswerScore]) -> AnswerScore:
    """Return the best exact match and the best F1, each from whichever right answer gives it."""
    every = list(scores)
    return AnswerScore(max(score.exact for score in every), max(score.f1 for score in every))


def _f1(num_common: int, num_predicted: int, num_gold: int) -> float:
    return 2 * num_common / (num_predicted + num_gold) if num_common else 0.0


def _require_answers(answers: Sequence[str]) -> Sequence[str]:
    if not answers:
        raise InputError(
            "a question has no right answer, and SQuAD 1.1 and CMRC 2018 know no such questions; score it as SQuAD 2.0 "
            "(squad2) or take it out of the file"
        )
    return answers


def _check_num_questions(num_questions: int) -> None:
    if num_questions == 0:
        raise InputError("there is no question to score; give a file with at least one question")
