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
from bertworks.datasets.files import Record
from bertworks.encoders.stack import BertConfig
from bertworks.errors import InputError, SettingsError
from bertworks.metrics.question_answering import RULES, AnswerTally, NoAnswerTally
from bertworks.sampling.batch import Batch
from bertworks.sampling.windows import WindowRule, WindowSpan, make_windows
from bertworks.tasks.contract import Features, InputSequence, Mistake, Task, TaskScores, worst_mistakes
from bertworks.tasks.heads import SpanHead
from bertworks.tasks.spans import Edges, WindowScores, best_spans, edges_of, softmax, token_span_of
from bertworks.text.document import Counts
from bertworks.vocabulary.characters import IDEOGRAPH
from bertworks.vocabulary.tokenizer import TokenizedText, Tokenizer

# Whose rule scores answers, and its name among the rules.
SCORINGS = {"squad": "squad1", "cmrc": "cmrc2018"}

# The most pieces of an answer. The paper's code allows 30, and 99.9 % of SQuAD's have no more; of CMRC 2018's, where a
# piece is a character, a fifth has. An answer no longer than the overlap of windows always stands whole in one of them.
_MAX_ANSWER_TOKENS = 30
_MAX_ANSWER_TOKENS_CHINESE = 96

# How many answers are told, and from how many spans of pieces they are made: some become the same words.
_NUM_BEST = 20
_NUM_SPANS = 4 * _NUM_BEST

# In a row of which nothing is known; no place has this number.
_IGNORE_INDEX = -1
# The first place of a row, where a model points if the row does not hold the answer.
_NULL_POSITION = 0


@dataclass(frozen=True, slots=True)
class PassageExample:
    """A question on a passage. Without answers it is either impossible to answer, or nobody has said."""

    id: str
    location: str
    question: str
    passage: str
    answers: tuple[squad.GoldAnswer, ...] = ()
    is_impossible: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        return self.question, self.passage

    @property
    def label(self) -> tuple[squad.GoldAnswer, ...] | None:
        """The right answers, none of them where there is none; None where it is not known."""
        return self.answers if self.answers or self.is_impossible else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageFeatures(Features):
    """The rows of a case, and where in its passage answers begin and end."""

    edges: Edges


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """A span of the passage, from character `start` to before `end`, and how probable it is."""

    text: str
    start: int
    end: int
    probability: float


@dataclass(frozen=True, slots=True)
class AnswerPrediction:
    """The answer, `passage[start:end]`; no answer is "" from 0 to 0. `runners_up` are the next best, the best first.

    `null_odds` is the score of no answer less that of the best span; above the task's threshold nothing is answered.
    """

    id: str
    text: str
    start: int
    end: int
    probability: float
    runners_up: tuple[AnswerSpan, ...]
    null_odds: float

    @property
    def best_text(self) -> str:
        """The best span, whether or not it was thought good enough."""
        return self.text or self.runners_up[0].text

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "runners_up": [asdict(found) for found in self.runners_up]}


@dataclass(frozen=True, slots=True)
class Answer:
    """Which words of the passage? With `no_answer` a passage may hold none (SQuAD 2.0)."""

    name: ClassVar[str] = "answer"
    head_kind: ClassVar[str] = "spans"
    default_window_rule: ClassVar[WindowRule] = WindowRule(384, 96)
    no_answer: bool = False
    null_threshold: float = 0.0
    max_answer_tokens: int = _MAX_ANSWER_TOKENS
    scoring: str = "squad"

    def __post_init__(self) -> None:
        if self.scoring not in SCORINGS:
            raise SettingsError(f"there is no scoring '{self.scoring}'; choose one of: {', '.join(SCORINGS)}")
        if self.max_answer_tokens < 1:
            raise SettingsError(f"answers of at most {self.max_answer_tokens} pieces cannot be; allow at least 1")
        if self.no_answer and self.scoring == "cmrc":
            raise SettingsError(
                "CMRC 2018 has no rule for questions without an answer; choose the scoring 'squad', or leave them out"
            )

    @classmethod
    def read(cls, path: Path, columns: Mapping[str, str], counts: Counts | None = None) -> Iterator[PassageExample]:
        """Yield the cases of a file; `counts` is told how many answers were moved and how many stand in no passage."""
        report = squad.SquadReport()
        for one in squad.read_questions(path, report):
            yield PassageExample(one.id, one.location, one.question, one.context, one.answers, one.is_impossible)
        if counts is not None:
            counts["answers whose offset was mended"] += report.num_repaired
            for named in report.absent_answers[:1]:
                counts[f"answers that are not in their passage (the first: {named})"] += report.num_absent

    @classmethod
    def read_unlabelled(cls, records: Iterable[Record], columns: Mapping[str, str]) -> Iterator[PassageExample]:
        for one in squad.questions_of(map(_require_passage, records), squad.SquadReport()):
            yield PassageExample(one.id, one.location, one.question, one.context, (), False)

    @classmethod
    def from_examples(cls, examples: Sequence[PassageExample], settings: Mapping[str, Any]) -> Answer:
        """Return the task; what no setting says follows from the cases: whether some are impossible, and the language.

        Chinese answers may be longer, and are scored by CMRC's rule, unless there are impossible questions, of which
        that rule knows nothing.
        """
        if not any(_answer_in_passage(case) for case in examples):
            raise InputError(
                f"none of the {len(examples):,} training questions has an answer that stands in its passage; there is "
                f"nothing to learn: give 'answers' with texts that are copied from 'context'"
            )
        told = {key: settings[key] for key in ("no_answer", "max_answer_pieces", "scoring") if key in settings}
        no_answer = told.setdefault("no_answer", any(case.is_impossible for case in examples))
        is_chinese = _is_chinese(examples)
        told.setdefault("scoring", "cmrc" if is_chinese and not no_answer else "squad")
        told.setdefault("max_answer_pieces", _MAX_ANSWER_TOKENS_CHINESE if is_chinese else _MAX_ANSWER_TOKENS)
        return cls(**told)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> Answer:
        return cls(**{key: metadata[key] for key in cls().metadata() if key in metadata})

    def metadata(self) -> dict[str, Any]:
        return asdict(self)

    def config(self) -> dict[str, Any]:
        return {}

    def head(self, config: BertConfig) -> nn.Module:
        return SpanHead(config.hidden_size)

    @property
    def main_metric(self) -> str:
        return "f1"

    def featurize(self, example: PassageExample, tokenizer: Tokenizer, window_rule: WindowRule) -> PassageFeatures:
        """Return the question and the passage as pairs; of several right answers the first one trains.

        A row points to the answer if it holds all of it, else to its first place; an answer that is not in the passage
        is not trained on.
        """
        for part, text in (("question", example.question), ("passage", example.passage)):
            if not text.strip():
                raise InputError(f"{example.location}: the {part} is empty; fill it in or remove the question")
        if example.label is not None:
            self._gold_answers(example)  # refuses what this model cannot be scored on
        passage, edges = _tokenize_passage(tokenizer, example.passage)
        windows = make_windows(tokenizer, [tokenizer.tokenize(example.question), passage], window_rule)
        runs = [window.spans[1] for window in windows.sequences]
        if not any((_begins(edges, run) < _ends(edges, run)).any() for run in runs):
            raise InputError(f"{example.location}: the passage has no words that could be an answer; give its text")
        located = _answer_in_passage(example)
        span = None
        if located is not None and located.start is not None:
            span = token_span_of(passage, located.start, located.start + len(located.text))
        rows = tuple(
            InputSequence(window, labels=_labels(example.is_impossible, span, run))
            for window, run in zip(windows.sequences, runs, strict=True)
        )
        return PassageFeatures(sequences=rows, num_truncated=windows.num_truncated, edges=edges)

    def collate_labels(self, features: Sequence[Features]) -> dict[str, torch.Tensor]:
        return {}  # each row has its own

    def loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        starts, ends = outputs.unbind(-1)  # each (B, T)
        at_start = F.cross_entropy(starts, batch.labels["start"], reduction="sum", ignore_index=_IGNORE_INDEX)
        at_end = F.cross_entropy(ends, batch.labels["end"], reduction="sum", ignore_index=_IGNORE_INDEX)
        return (at_start + at_end) / 2

    def num_targets(self, batch: Batch) -> int:
        return int((batch.labels["start"] != _IGNORE_INDEX).sum())

    def decode(
        self, example: PassageExample, features: Features, outputs: Sequence[npt.NDArray[np.float32]]
    ) -> AnswerPrediction:
        """Return the best span, or no answer; probabilities are among the best spans, and no answer if it may be."""
        assert isinstance(features, PassageFeatures)
        edges = features.edges
        stretches = [
            _window_scores(edges, row.window.spans[1], output)
            for row, output in zip(features.sequences, outputs, strict=True)
        ]
        spans = best_spans(stretches, self.max_answer_tokens, _NUM_SPANS)
        scores: dict[tuple[int, int], float] = {}  # of the text's characters, the best first
        begins, ends = edges.begins[spans.firsts].tolist(), edges.ends[spans.lasts].tolist()
        for begin, end, score in zip(begins, ends, spans.scores.tolist(), strict=True):
            scores.setdefault((begin, end), score)
        best = dict(islice(scores.items(), _NUM_BEST))
        null = min(float(output[_NULL_POSITION].sum()) for output in outputs)
        shares = softmax(np.array([*best.values(), null] if self.no_answer else list(best.values())))
        found = tuple(
            AnswerSpan(example.passage[begin:end], begin, end, share)
            for (begin, end), share in zip(best, shares.tolist(), strict=False)
        )
        null_odds = null - next(iter(best.values()))
        if self.no_answer and null_odds > self.null_threshold:
            return AnswerPrediction(example.id, "", 0, 0, float(shares[-1]), found, null_odds)
        first = found[0]
        return AnswerPrediction(example.id, first.text, first.start, first.end, first.probability, found[1:], null_odds)

    def score(self, pairs: Iterable[tuple[PassageExample, AnswerPrediction]]) -> TaskScores:
        """Return exact match and F1, with `no_answer` also of questions with and without an answer apart."""
        rule = "squad2" if self.no_answer else SCORINGS[self.scoring]
        tally, silent_tally = AnswerTally(rule), NoAnswerTally()
        mistakes: list[Mistake] = []
        for case, prediction in pairs:
            right = self._gold_answers(case)
            if self.no_answer:
                silent_tally.add(prediction.best_text, right, prediction.null_odds)
            else:
                tally.add(prediction.text, right)
            if not RULES[rule](prediction.text, right).exact:
                told = next(iter(right), ""), prediction.text
                mistakes = worst_mistakes(
                    [*mistakes, Mistake(prediction.probability, case.texts, *told, case.location)]
                )
        figures = silent_tally.scores(self.null_threshold) if self.no_answer else tally.scores()
        return TaskScores(figures, self.main_metric, {"mistakes": mistakes})

    def _gold_answers(self, example: PassageExample) -> list[str]:
        """Return the right answers, those too that are not in the passage: the official scripts count them."""
        if not example.answers and not (self.no_answer and example.is_impossible):
            reason = "is impossible, which this model was not trained for" if example.is_impossible else "has no answer"
            raise InputError(
                f"{example.location}: the question {reason}, so it cannot be scored; take it out of the file"
            )
        return [answer.text for answer in example.answers]

    def calibrate(self, examples: Sequence[PassageExample], predictions: Sequence[AnswerPrediction]) -> Task:
        """Return the task with the threshold of no answer that gives the highest F1."""
        if not self.no_answer:
            return self
        tally = NoAnswerTally()
        for case, prediction in zip(examples, predictions, strict=True):
            tally.add(prediction.best_text, self._gold_answers(case), prediction.null_odds)
        return replace(self, null_threshold=tally.best_threshold("f1").value)


@lru_cache(maxsize=4)
def _tokenize_passage(tokenizer: Tokenizer, passage: str) -> tuple[TokenizedText, Edges]:
    """Cut a passage. The questions on it follow one another, so it is remembered for a while."""
    cut = tokenizer.tokenize(passage)
    return cut, edges_of(cut, passage)


def _require_passage(record: Record) -> Record:
    if not record.fields.keys() >= {"question", "context"}:
        raise InputError(
            f"{record.location}: a question and its passage are needed; give JSON Lines with 'question' and 'context' "
            f"(--kind jsonl), or a .json file of SQuAD's shape"
        )
    return record


def _answer_in_passage(example: PassageExample) -> squad.GoldAnswer | None:
    """Return the first right answer that stands in the passage."""
    return next((answer for answer in example.answers if answer.start is not None), None)


def _is_chinese(examples: Sequence[PassageExample]) -> bool:
    first = examples[:100]
    return 2 * sum(IDEOGRAPH.search(case.question) is not None for case in first) > len(first)


def _labels(is_impossible: bool, span: tuple[int, int] | None, run: WindowSpan) -> dict[str, int]:
    """Return where in a row the answer starts and ends, which is from piece span[0] to span[1] of the passage."""
    if is_impossible:
        return {"start": _NULL_POSITION, "end": _NULL_POSITION}
    if span is None:
        return {"start": _IGNORE_INDEX, "end": _IGNORE_INDEX}
    if span[0] < run.first or span[1] >= run.first + run.count:
        return {"start": _NULL_POSITION, "end": _NULL_POSITION}
    return {"start": span[0] - run.first + run.position, "end": span[1] - run.first + run.position}


def _begins(edges: Edges, run: WindowSpan) -> npt.NDArray[np.int32]:
    return edges.begins[run.first : run.first + run.count]


def _ends(edges: Edges, run: WindowSpan) -> npt.NDArray[np.int32]:
    return edges.ends[run.first : run.first + run.count]


def _window_scores(edges: Edges, run: WindowSpan, output: npt.NDArray[np.float32]) -> WindowScores:
    """Return what a row says of its part of the passage; pieces of white space alone start and end no answer."""
    scores = output[run.position : run.position + run.count]  # (n, 2)
    is_blank = _begins(edges, run) >= _ends(edges, run)
    if is_blank.any():
        scores = np.where(is_blank[:, None], np.float32(-np.inf), scores)
    return WindowScores(run.first, scores[:, 0], scores[:, 1])
