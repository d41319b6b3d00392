"""Answer questions on passages: SQuAD's files in, spans of the passage out, or the word that there is no answer.

B rows of T places, K spans. How spans are chosen, in windows too, stands in `tasks.spans`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from bertworks.datasets import squad
from bertworks.datasets.files import Line
from bertworks.encoders.stack import BertSizes
from bertworks.errors import InputError, SettingsError
from bertworks.metrics.question_answering import RULES, NoAnswerTally, ReadingTally
from bertworks.sampling.batch import Batch
from bertworks.sampling.windows import Run, WindowRule, windows_of
from bertworks.tasks.contract import Asked, Mistake, Question, Scored, Task, worst
from bertworks.tasks.heads import SpanHead
from bertworks.tasks.spans import Edges, Stretch, best_spans, chances, edges_of, pieces_of
from bertworks.text.document import Counts
from bertworks.vocabulary.characters import IDEOGRAPH
from bertworks.vocabulary.tokenizer import Cut, Tokenizer

# Whose rule scores answers, and its name among the rules.
SCORINGS = {"squad": "squad1", "cmrc": "cmrc2018"}

# The most pieces of an answer. The paper's code allows 30, and 99.9 % of SQuAD's have no more; of CMRC 2018's, where a
# piece is a character, a fifth has. An answer no longer than the overlap of windows always stands whole in one of them.
_LONGEST = 30
_LONGEST_CHINESE = 96

# How many answers are told, and from how many spans of pieces they are made: some become the same words.
_NUM_BEST = 20
_NUM_SPANS = 4 * _NUM_BEST

# In a row of which nothing is known; no place has this number.
_UNKNOWN = -1
# The first place of a row, where a model points if the row does not hold the answer.
_NOWHERE = 0


@dataclass(frozen=True, slots=True)
class PassageCase:
    """A question on a passage. Without answers it is either impossible to answer, or nobody has said."""

    id: str
    place: str
    question: str
    passage: str
    answers: tuple[squad.Answer, ...] = ()
    is_impossible: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        return self.question, self.passage

    @property
    def label(self) -> tuple[squad.Answer, ...] | None:
        """The right answers, none of them where there is none; None where it is not known."""
        return self.answers if self.answers or self.is_impossible else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageQuestion(Question):
    """The rows of a case, and where in its passage answers begin and end."""

    edges: Edges


@dataclass(frozen=True, slots=True)
class Found:
    """A span of the passage, from character `start` to before `end`, and how probable it is."""

    text: str
    start: int
    end: int
    probability: float


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer, `passage[start:end]`; no answer is "" from 0 to 0. `runners_up` are the next best, the best first.

    `null_odds` is the score of no answer less that of the best span; above the task's threshold nothing is answered.
    """

    id: str
    text: str
    start: int
    end: int
    probability: float
    runners_up: tuple[Found, ...]
    null_odds: float

    @property
    def best_text(self) -> str:
        """The best span, whether or not it was thought good enough."""
        return self.text or self.runners_up[0].text

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "runners_up": [asdict(found) for found in self.runners_up]}


@dataclass(frozen=True, slots=True)
class Answer:
    """Which words of the passage? With `no_answer` a passage may hold none (SQuAD 2.0)."""

    name: ClassVar[str] = "answer"
    head_kind: ClassVar[str] = "spans"
    default_rule: ClassVar[WindowRule] = WindowRule(384, 96)
    no_answer: bool = False
    null_threshold: float = 0.0
    max_answer_pieces: int = _LONGEST
    scoring: str = "squad"

    def __post_init__(self) -> None:
        if self.scoring not in SCORINGS:
            raise SettingsError(f"there is no scoring '{self.scoring}'; choose one of: {', '.join(SCORINGS)}")
        if self.max_answer_pieces < 1:
            raise SettingsError(f"answers of at most {self.max_answer_pieces} pieces cannot be; allow at least 1")
        if self.no_answer and self.scoring == "cmrc":
            raise SettingsError(
                "CMRC 2018 has no rule for questions without an answer; choose the scoring 'squad', or leave them out"
            )

    @classmethod
    def read(cls, path: Path, columns: Mapping[str, str], counts: Counts | None = None) -> Iterator[PassageCase]:
        """Yield the cases of a file; `counts` is told how many answers were moved and how many stand in no passage."""
        report = squad.SquadReport()
        for one in squad.read_questions(path, report):
            yield PassageCase(one.id, one.place, one.question, one.context, one.answers, one.is_impossible)
        if counts is not None:
            counts["answers whose offset was mended"] += report.num_repaired
            for named in report.absent[:1]:
                counts[f"answers that are not in their passage (the first: {named})"] += report.num_absent

    @classmethod
    def unlabelled(cls, lines: Iterable[Line], columns: Mapping[str, str]) -> Iterator[PassageCase]:
        for one in squad.questions_of(map(_with_passage, lines), squad.SquadReport()):
            yield PassageCase(one.id, one.place, one.question, one.context, (), False)

    @classmethod
    def learned(cls, cases: Sequence[PassageCase], settings: Mapping[str, Any]) -> Answer:
        """Return the task; what no setting says follows from the cases: whether some are impossible, and the language.

        Chinese answers may be longer, and are scored by CMRC's rule, unless there are impossible questions, of which
        that rule knows nothing.
        """
        if not any(_located(case) for case in cases):
            raise InputError(
                f"none of the {len(cases):,} training questions has an answer that stands in its passage; there is "
                f"nothing to learn: give 'answers' with texts that are copied from 'context'"
            )
        told = {key: settings[key] for key in ("no_answer", "max_answer_pieces", "scoring") if key in settings}
        no_answer = told.setdefault("no_answer", any(case.is_impossible for case in cases))
        is_chinese = _is_chinese(cases)
        told.setdefault("scoring", "cmrc" if is_chinese and not no_answer else "squad")
        told.setdefault("max_answer_pieces", _LONGEST_CHINESE if is_chinese else _LONGEST)
        return cls(**told)

    @classmethod
    def told(cls, told: Mapping[str, Any], config: Mapping[str, Any]) -> Answer:
        return cls(**{key: told[key] for key in cls().tell() if key in told})

    def tell(self) -> dict[str, Any]:
        return asdict(self)

    def config(self) -> dict[str, Any]:
        return {}

    def head(self, sizes: BertSizes) -> nn.Module:
        return SpanHead(sizes.width)

    @property
    def main(self) -> str:
        return "f1"

    def ask(self, case: PassageCase, tokenizer: Tokenizer, rule: WindowRule) -> PassageQuestion:
        """Return the question and the passage as pairs; of several right answers the first one trains.

        A row points to the answer if it holds all of it, else to its first place; an answer that is not in the passage
        is not trained on.
        """
        for part, text in (("question", case.question), ("passage", case.passage)):
            if not text.strip():
                raise InputError(f"{case.place}: the {part} is empty; fill it in or remove the question")
        if case.label is not None:
            self._right(case)  # refuses what this model cannot be scored on
        passage, edges = _cut_passage(tokenizer, case.passage)
        windows = windows_of(tokenizer, [tokenizer.cut(case.question), passage], rule)
        runs = [window.runs[1] for window in windows.rows]
        if not any((_begins(edges, run) < _ends(edges, run)).any() for run in runs):
            raise InputError(f"{case.place}: the passage has no words that could be an answer; give its text")
        located = _located(case)
        span = None
        if located is not None and located.start is not None:
            span = pieces_of(passage, located.start, located.start + len(located.text))
        rows = tuple(
            Asked(window, labels=_labels(case.is_impossible, span, run))
            for window, run in zip(windows.rows, runs, strict=True)
        )
        return PassageQuestion(rows=rows, num_cut=windows.num_cut, edges=edges)

    def labels_of(self, questions: Sequence[Question]) -> dict[str, torch.Tensor]:
        return {}  # each row has its own

    def loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        starts, ends = outputs.unbind(-1)  # each (B, T)
        at_start = F.cross_entropy(starts, batch.labels["start"], reduction="sum", ignore_index=_UNKNOWN)
        at_end = F.cross_entropy(ends, batch.labels["end"], reduction="sum", ignore_index=_UNKNOWN)
        return (at_start + at_end) / 2

    def num_answers(self, batch: Batch) -> int:
        return int((batch.labels["start"] != _UNKNOWN).sum())

    def answer(self, case: PassageCase, question: Question, outputs: Sequence[npt.NDArray[np.float32]]) -> Answered:
        """Return the best span, or no answer; probabilities are among the best spans, and no answer if it may be."""
        assert isinstance(question, PassageQuestion)
        edges = question.edges
        stretches = [
            _stretch(edges, row.window.runs[1], output) for row, output in zip(question.rows, outputs, strict=True)
        ]
        spans = best_spans(stretches, self.max_answer_pieces, _NUM_SPANS)
        scores: dict[tuple[int, int], float] = {}  # of the text's characters, the best first
        begins, ends = edges.begins[spans.firsts].tolist(), edges.ends[spans.lasts].tolist()
        for begin, end, score in zip(begins, ends, spans.scores.tolist(), strict=True):
            scores.setdefault((begin, end), score)
        best = dict(islice(scores.items(), _NUM_BEST))
        null = min(float(output[_NOWHERE].sum()) for output in outputs)
        shares = chances(np.array([*best.values(), null] if self.no_answer else list(best.values())))
        found = tuple(
            Found(case.passage[begin:end], begin, end, share)
            for (begin, end), share in zip(best, shares.tolist(), strict=False)
        )
        null_odds = null - next(iter(best.values()))
        if self.no_answer and null_odds > self.null_threshold:
            return Answered(case.id, "", 0, 0, float(shares[-1]), found, null_odds)
        first = found[0]
        return Answered(case.id, first.text, first.start, first.end, first.probability, found[1:], null_odds)

    def score(self, pairs: Iterable[tuple[PassageCase, Answered]]) -> Scored:
        """Return exact match and F1, with `no_answer` also of questions with and without an answer apart."""
        rule = "squad2" if self.no_answer else SCORINGS[self.scoring]
        tally, silent_tally = ReadingTally(rule), NoAnswerTally()
        mistakes: list[Mistake] = []
        for case, prediction in pairs:
            right = self._right(case)
            if self.no_answer:
                silent_tally.add(prediction.best_text, right, prediction.null_odds)
            else:
                tally.add(prediction.text, right)
            if not RULES[rule](prediction.text, right).exact:
                told = next(iter(right), ""), prediction.text
                mistakes = worst([*mistakes, Mistake(prediction.probability, case.texts, *told, case.place)])
        figures = silent_tally.scores(self.null_threshold) if self.no_answer else tally.scores()
        return Scored(figures, self.main, {"mistakes": mistakes})

    def _right(self, case: PassageCase) -> list[str]:
        """Return the right answers, those too that are not in the passage: the official scripts count them."""
        if not case.answers and not (self.no_answer and case.is_impossible):
            reason = "is impossible, which this model was not trained for" if case.is_impossible else "has no answer"
            raise InputError(f"{case.place}: the question {reason}, so it cannot be scored; take it out of the file")
        return [answer.text for answer in case.answers]

    def calibrated(self, cases: Sequence[PassageCase], predictions: Sequence[Answered]) -> Task:
        """Return the task with the threshold of no answer that gives the highest F1."""
        if not self.no_answer:
            return self
        tally = NoAnswerTally()
        for case, prediction in zip(cases, predictions, strict=True):
            tally.add(prediction.best_text, self._right(case), prediction.null_odds)
        return replace(self, null_threshold=tally.best("f1").value)


@lru_cache(maxsize=4)
def _cut_passage(tokenizer: Tokenizer, passage: str) -> tuple[Cut, Edges]:
    """Cut a passage. The questions on it follow one another, so it is remembered for a while."""
    cut = tokenizer.cut(passage)
    return cut, edges_of(cut, passage)


def _with_passage(line: Line) -> Line:
    if not line.fields.keys() >= {"question", "context"}:
        raise InputError(
            f"{line.place}: a question and its passage are needed; give JSON Lines with 'question' and 'context' "
            f"(--kind jsonl), or a .json file of SQuAD's shape"
        )
    return line


def _located(case: PassageCase) -> squad.Answer | None:
    """Return the first right answer that stands in the passage."""
    return next((answer for answer in case.answers if answer.start is not None), None)


def _is_chinese(cases: Sequence[PassageCase]) -> bool:
    first = cases[:100]
    return 2 * sum(IDEOGRAPH.search(case.question) is not None for case in first) > len(first)


def _labels(is_impossible: bool, span: tuple[int, int] | None, run: Run) -> dict[str, int]:
    """Return where in a row the answer starts and ends, which is from piece span[0] to span[1] of the passage."""
    if is_impossible:
        return {"start": _NOWHERE, "end": _NOWHERE}
    if span is None:
        return {"start": _UNKNOWN, "end": _UNKNOWN}
    if span[0] < run.first or span[1] >= run.first + run.count:
        return {"start": _NOWHERE, "end": _NOWHERE}
    return {"start": span[0] - run.first + run.place, "end": span[1] - run.first + run.place}


def _begins(edges: Edges, run: Run) -> npt.NDArray[np.int32]:
    return edges.begins[run.first : run.first + run.count]


def _ends(edges: Edges, run: Run) -> npt.NDArray[np.int32]:
    return edges.ends[run.first : run.first + run.count]


def _stretch(edges: Edges, run: Run, output: npt.NDArray[np.float32]) -> Stretch:
    """Return what a row says of its part of the passage; pieces of white space alone start and end no answer."""
    scores = output[run.place : run.place + run.count]  # (n, 2)
    is_blank = _begins(edges, run) >= _ends(edges, run)
    if is_blank.any():
        scores = np.where(is_blank[:, None], np.float32(-np.inf), scores)
    return Stretch(run.first, scores[:, 0], scores[:, 1])
