"""Extractive question answering: SQuAD's files in, spans of the passage out, or no answer.

B sequences of T positions, K spans. How spans are chosen, across windows too, is in `tasks.spans`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from bertworks.datasets import squad
from bertworks.datasets.files import Record
from bertworks.errors import InputError, SettingsError
from bertworks.metrics.question_answering import RULES, AnswerTally, NoAnswerTally
from bertworks.sampling.windows import WindowRule, make_windows
from bertworks.tasks.answer_prediction import AnswerPrediction as AnswerPrediction
from bertworks.tasks.answer_prediction import AnswerSpan as AnswerSpan
from bertworks.tasks.attribution import contrast_coefficients, source_text
from bertworks.tasks.contract import (
    AttributionTarget,
    Features,
    InputFields,
    InputSequence,
    Mistake,
    PredictionContext,
    Task,
    TaskScores,
    worst_mistakes,
)
from bertworks.tasks.spans import (
    NO_TARGET,
    NULL_POSITION,
    Edges,
    best_spans,
    edges_of,
    has_answers,
    positions_of_span,
    scores_of_window,
    softmax,
    span_labels,
    token_span_of,
)
from bertworks.text.document import Counts
from bertworks.vocabulary.characters import IDEOGRAPH
from bertworks.vocabulary.tokenizer import TokenizedText, Tokenizer

if TYPE_CHECKING:
    import torch
    from torch import nn

    from bertworks.encoders.config import EncoderConfig
    from bertworks.sampling.batch import Batch

# Which official script scores answers -> the name of its rule.
SCORINGS = {"squad": "squad1", "cmrc": "cmrc2018"}

# The maximum answer length in tokens. The paper's code allows 30, enough for 99.9 % of SQuAD's answers; a fifth of CMRC
# 2018's, where a token is a character, are longer. An answer no longer than the overlap of windows is always whole in
# one of them.
_MAX_ANSWER_TOKENS = 30
_MAX_ANSWER_TOKENS_CHINESE = 96

# How many answers a prediction lists, and of how many token spans they are made: some spans have the same text.
_NUM_BEST = 20
_NUM_SPANS = 4 * _NUM_BEST

# What can be explained -> which of the two scores of a position it involves.
_ATTRIBUTION_SIDES = {"start": (0,), "end": (1,), "answer": (0, 1), "no answer": (0, 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageExample:
    """A question on a passage. Without answers it is either impossible to answer, or unlabelled."""

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
        """The gold answers, empty if there is none; None if unknown."""
        return self.answers if self.answers or self.is_impossible else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageFeatures(Features):
    """Features of a question, and the characters of the passage at which answers may start and end."""

    edges: Edges


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Extractive question answering. With `no_answer` a passage may hold no answer (SQuAD 2.0)."""

    name: ClassVar[str] = "answer"
    head_kind: ClassVar[str] = "spans"
    default_window_rule: ClassVar[WindowRule] = WindowRule(384, 96)
    input_fields: ClassVar[tuple[InputFields, ...]] = (InputFields(("question", "context")),)
    labelled_fields = staticmethod(squad.labelled_fields)
    no_answer: bool = False
    null_threshold: float = 0.0
    max_answer_tokens: int = _MAX_ANSWER_TOKENS
    scoring: str = "squad"

    def __post_init__(self) -> None:
        if self.scoring not in SCORINGS:
            raise SettingsError(f"there is no scoring '{self.scoring}'; choose one of: {', '.join(SCORINGS)}")
        if self.max_answer_tokens < 1:
            raise SettingsError(f"max_answer_tokens is {self.max_answer_tokens}; give at least 1")
        if self.no_answer and self.scoring == "cmrc":
            raise SettingsError(
                "CMRC 2018 does not score questions without an answer; choose the scoring 'squad', or remove them"
            )

    @classmethod
    def read(cls, path: Path, columns: Mapping[str, str], counts: Counts | None = None) -> Iterator[PassageExample]:
        """Yield the questions of a file; `counts` receives the answers with a repaired offset, and those that are not
        in their passage."""
        report = squad.SquadReport()
        for question in squad.read_questions(path, report):
            yield PassageExample(
                id=question.id,
                location=question.location,
                question=question.question,
                passage=question.context,
                answers=question.answers,
                is_impossible=question.is_impossible,
            )
        if counts is not None:
            counts["answers with a repaired offset"] += report.num_repaired
            for first in report.absent_answers[:1]:
                counts[f"answers that are not in their passage (the first: {first})"] += report.num_absent

    @classmethod
    def read_unlabelled(cls, records: Iterable[Record], columns: Mapping[str, str]) -> Iterator[PassageExample]:
        for question in squad.questions_of(map(_require_passage, records), squad.SquadReport()):
            yield PassageExample(
                id=question.id, location=question.location, question=question.question, passage=question.context
            )

    @classmethod
    def from_examples(cls, examples: Sequence[PassageExample], settings: Mapping[str, Any]) -> Answer:
        """Build the task; what no setting gives follows from the examples: `no_answer`, and by language the rest.

        Chinese answers may be longer, and CMRC's rule scores them unless some questions are impossible, which it does
        not know.
        """
        if not any(_answer_in_passage(example) for example in examples):
            raise InputError(
                f"none of the {len(examples):,} training questions has an answer that is in its passage, so there is "
                f"nothing to learn; give 'answers' with texts copied from 'context'"
            )
        options = {key: settings[key] for key in ("no_answer", "max_answer_tokens", "scoring") if key in settings}
        no_answer = options.setdefault("no_answer", any(example.is_impossible for example in examples))
        is_chinese = _is_chinese(examples)
        options.setdefault("scoring", "cmrc" if is_chinese and not no_answer else "squad")
        options.setdefault("max_answer_tokens", _MAX_ANSWER_TOKENS_CHINESE if is_chinese else _MAX_ANSWER_TOKENS)
        return cls(**options)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> Answer:
        return cls(**{key: metadata[key] for key in cls().metadata() if key in metadata})

    @classmethod
    def matches_config(cls, config: Mapping[str, Any]) -> bool:
        return True

    def metadata(self) -> dict[str, Any]:
        return asdict(self)

    def config(self) -> dict[str, Any]:
        return {}

    def head(self, config: EncoderConfig) -> nn.Module:
        from bertworks.tasks.heads import SpanHead

        return SpanHead(config.hidden_size)

    @property
    def main_metric(self) -> str:
        return "f1"

    def featurize(self, example: PassageExample, tokenizer: Tokenizer, window_rule: WindowRule) -> PassageFeatures:
        """Encode question and passage as pairs; the first gold answer that is in the passage is the target.

        A window that does not hold the whole answer has its first position as the target. An answer that is not in
        the passage gives no target.
        """
        for part, text in (("question", example.question), ("passage", example.passage)):
            if not text.strip():
                raise InputError(f"{example.location}: the {part} is empty; fill it in or remove the question")
        if example.label is not None:
            self._gold_answers(example)
        passage, edges = _tokenize_passage(tokenizer, example.passage)
        windows = make_windows(tokenizer, [tokenizer.tokenize(example.question), passage], window_rule)
        if not any(has_answers(edges, window.spans[1]) for window in windows.sequences):
            raise InputError(f"{example.location}: the passage has no words that could be an answer; give its text")
        gold = _answer_in_passage(example)
        span = None
        if gold is not None and gold.start is not None:
            span = token_span_of(passage, gold.start, gold.start + len(gold.text))
        sequences = tuple(
            InputSequence.from_window(window, labels=span_labels(example.is_impossible, span, window.spans[1]))
            for window in windows.sequences
        )
        return PassageFeatures(sequences=sequences, num_truncated=windows.num_truncated, edges=edges)

    def collate_labels(self, features: Sequence[Features]) -> dict[str, torch.Tensor]:
        return {}  # each sequence has its own

    def loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        import torch.nn.functional as F  # noqa: N812

        start_logits, end_logits = outputs.unbind(-1)  # each (B, T)
        start_loss = F.cross_entropy(start_logits, batch.labels["start"], reduction="sum", ignore_index=NO_TARGET)
        end_loss = F.cross_entropy(end_logits, batch.labels["end"], reduction="sum", ignore_index=NO_TARGET)
        return (start_loss + end_loss) / 2

    def num_targets(self, batch: Batch) -> int:
        return int((batch.labels["start"] != NO_TARGET).sum())

    def decode(
        self, example: PassageExample, features: Features, outputs: Sequence[npt.NDArray[np.float32]]
    ) -> AnswerPrediction:
        """Return the best span or no answer. Probabilities are a softmax over the best spans, and no answer if the
        task allows it."""
        assert isinstance(features, PassageFeatures)
        edges = features.edges
        scores_by_window = [
            scores_of_window(edges, sequence.spans[1], output)
            for sequence, output in zip(features.sequences, outputs, strict=True)
        ]
        spans = best_spans(scores_by_window, self.max_answer_tokens, _NUM_SPANS)
        scores: dict[tuple[int, int], float] = {}  # by characters of the passage, best first
        starts, ends = edges.begins[spans.firsts].tolist(), edges.ends[spans.lasts].tolist()
        for start, end, score in zip(starts, ends, spans.scores.tolist(), strict=True):
            scores.setdefault((start, end), score)
        best = dict(islice(scores.items(), _NUM_BEST))
        null_score = min(float(output[NULL_POSITION].sum()) for output in outputs)
        probabilities = softmax(np.array([*best.values(), null_score] if self.no_answer else list(best.values())))
        answers = tuple(
            AnswerSpan(example.passage[start:end], start, end, probability)
            for (start, end), probability in zip(best, probabilities.tolist(), strict=False)
        )
        null_odds = null_score - next(iter(best.values()))
        answer, runners_up = answers[0], answers[1:]
        if self.no_answer and null_odds > self.null_threshold:
            answer, runners_up = AnswerSpan("", 0, 0, float(probabilities[-1])), answers
        return AnswerPrediction(
            id=example.id,
            text=answer.text,
            start=answer.start,
            end=answer.end,
            probability=answer.probability,
            runners_up=runners_up,
            null_odds=null_odds,
        )

    def score(self, pairs: Iterable[tuple[PassageExample, AnswerPrediction]]) -> TaskScores:
        """Return exact match and F1; with `no_answer` also separately for questions with and without an answer."""
        rule = "squad2" if self.no_answer else SCORINGS[self.scoring]
        tally, no_answer_tally = AnswerTally(rule), NoAnswerTally()
        mistakes: list[Mistake] = []
        for example, prediction in pairs:
            gold = self._gold_answers(example)
            if self.no_answer:
                no_answer_tally.add(prediction.best_text, gold, prediction.null_odds)
            else:
                tally.add(prediction.text, gold)
            if not RULES[rule](prediction.text, gold).exact:
                mistake = Mistake(
                    confidence=prediction.probability,
                    texts=example.texts,
                    expected=next(iter(gold), ""),
                    predicted=prediction.text,
                    location=example.location,
                )
                mistakes = worst_mistakes([*mistakes, mistake])
        metrics = no_answer_tally.scores(self.null_threshold) if self.no_answer else tally.scores()
        return TaskScores(metrics=metrics, main_metric=self.main_metric, details={"mistakes": mistakes})

    def _gold_answers(self, example: PassageExample) -> list[str]:
        """Return the gold answers, also those that are not in the passage: the official scripts count them."""
        if not example.answers and not (self.no_answer and example.is_impossible):
            reason = "is impossible, which this model was not trained for" if example.is_impossible else "has no answer"
            raise InputError(
                f"{example.location}: the question {reason}, so it cannot be scored; remove it from the file"
            )
        return [answer.text for answer in example.answers]

    def calibrate(self, examples: Sequence[PassageExample], predictions: Sequence[AnswerPrediction]) -> Task:
        """Return the task with the null threshold that gives the highest F1."""
        if not self.no_answer:
            return self
        tally = NoAnswerTally()
        for example, prediction in zip(examples, predictions, strict=True):
            tally.add(prediction.best_text, self._gold_answers(example), prediction.null_odds)
        return replace(self, null_threshold=tally.best_threshold("f1").value)

    def submission_value(self, prediction: AnswerPrediction) -> str:
        return prediction.text

    def attribution_target(self, context: PredictionContext, target: str | None) -> AttributionTarget:
        """Explain the "start" or "end" of the best answer, both ("answer", the default), or "no answer".

        An answer is explained in the window where it is farthest from the edges; windows with the same part of the
        passage, under parts of a long question, share it.
        """
        assert isinstance(context.features, PassageFeatures)
        prediction = self.decode(context.example, context.features, context.outputs)
        target_name = target if target is not None else ("answer" if prediction.text else "no answer")
        if target_name not in _ATTRIBUTION_SIDES:
            choices = ", ".join(_ATTRIBUTION_SIDES)
            raise InputError(f"there is no '{target_name}' to explain in an answer; choose one of: {choices}")
        best = prediction if prediction.text else prediction.runners_up[0]
        outputs = context.outputs
        if target_name == "no answer":  # as in `decode`: the window with the lowest score
            positions = {min(range(len(outputs)), key=lambda index: outputs[index][NULL_POSITION].sum()): (0, 0)}
        else:
            window_spans = [sequence.spans[1] for sequence in context.features.sequences]
            positions = positions_of_span(context.features.edges, (best.start, best.end), window_spans, outputs)
        coefficients: list[npt.NDArray[Any] | None] = [None] * len(outputs)
        for index, edge_positions in positions.items():
            window_coefficients = np.zeros(outputs[index].shape)  # (T, 2)
            for side in _ATTRIBUTION_SIDES[target_name]:
                window_coefficients[:, side] = contrast_coefficients(
                    len(window_coefficients), edge_positions[side]
                ) / len(positions)
            coefficients[index] = window_coefficients
        texts = (
            source_text("question", context.example.question, context.tokenizer),
            source_text("passage", context.example.passage, context.tokenizer),
        )
        name = target_name if target_name == "no answer" else f"{target_name} '{best.text}'"
        return AttributionTarget(name, texts, tuple(coefficients), (((0, 0), (1, 0)),) * len(outputs))


@lru_cache(maxsize=4)
def _tokenize_passage(tokenizer: Tokenizer, passage: str) -> tuple[TokenizedText, Edges]:
    """Tokenize a passage; cached because the questions on a passage follow one another."""
    tokens = tokenizer.tokenize(passage)
    return tokens, edges_of(tokens, passage)


def _require_passage(record: Record) -> Record:
    if not record.fields.keys() >= {"question", "context"}:
        raise InputError(
            f"{record.location}: a question and its passage are needed; give JSON Lines with 'question' and 'context' "
            f"(--kind jsonl), or a .json file in SQuAD's format"
        )
    return record


def _answer_in_passage(example: PassageExample) -> squad.GoldAnswer | None:
    """Return the first gold answer that is in the passage."""
    return next((answer for answer in example.answers if answer.start is not None), None)


def _is_chinese(examples: Sequence[PassageExample]) -> bool:
    first = examples[:100]
    return 2 * sum(IDEOGRAPH.search(example.question) is not None for example in first) > len(first)
