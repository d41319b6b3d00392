"""Tag words: sentences with BIO tags in, entities with offsets and probabilities out.

Only the first piece of a word is asked; its other pieces, and the document around the sentence, are read. W words,
P places that are asked, C labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from bertworks.encoders.bert import BertSizes
from bertworks.engines.windows import WindowRule, windows_of
from bertworks.errors import InputError
from bertworks.examples.batch import Batch
from bertworks.tasks.calibration import fit_temperature
from bertworks.tasks.classify import label_config, labels_in
from bertworks.tasks.conll import Sentence, read_sentences, split_words
from bertworks.tasks.contract import Asked, Mistake, Question, Scored, Task, worst
from bertworks.tasks.entity_scores import EntityTally
from bertworks.tasks.files import Line
from bertworks.tasks.heads import CLASSIFIER_NAMES, PlaceHead
from bertworks.tasks.metrics import ConfusionTally, Matches
from bertworks.tasks.tagging import (
    NUM_BINS,
    Around,
    Ints,
    Span,
    binned,
    chances_of,
    decoded,
    entities_in,
    in_documents,
    labels_for,
    number_of,
    numbers_of,
    read_alone,
    read_in_context,
    spans_in,
)
from bertworks.text.document import Counts
from bertworks.vocabulary.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TagCase:
    """A sentence with its tags, None where they are not known, and its document around it, where nothing is asked."""

    id: str
    around: Around

    @classmethod
    def of_text(cls, text: str, name: str = "1", place: str = "the text") -> TagCase:
        """Return a case for a plain text: a word is what stands between white space and punctuation, an ideograph, or
        one such mark. Files of spans are cut in the same way."""
        words, offsets = split_words(text)
        return cls(name, Around(Sentence(words, None, text, offsets, 0, place)))

    @property
    def sentence(self) -> Sentence:
        return self.around.sentence

    @property
    def place(self) -> str:
        return self.sentence.place

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.sentence.text,)

    @property
    def label(self) -> tuple[str, ...] | None:
        return self.sentence.tags


@dataclass(frozen=True, slots=True)
class Tagged:
    """The words of a sentence with legal BIO tags, the entities that they say, and the logits of the words asked.

    A word that was cut off by request is O and has no logits; such words stand at the end.
    """

    id: str
    tags: tuple[str, ...]
    spans: tuple[Span, ...]
    words: tuple[str, ...] = ()
    logits: npt.NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), dtype=np.float32))

    def as_json(self) -> dict[str, Any]:
        spans = [span.as_json() for span in self.spans]
        return {"id": self.id, "words": list(self.words), "tags": list(self.tags), "spans": spans}


@dataclass(frozen=True, slots=True)
class Tag:
    """Which words are entities, and of what type? With `context` a sentence is read with its document around it."""

    name: ClassVar[str] = "tag"
    architecture: ClassVar[str] = "BertForTokenClassification"
    labels: tuple[str, ...]
    context: bool = True
    temperature: float = 1.0

    @classmethod
    def read(cls, path: Path, columns: Mapping[str, str], counts: Counts | None = None) -> Iterator[TagCase]:
        """Yield the sentences of a file of CoNLL columns, or of JSON Lines with spans or with tokens.

        The columns "text" and "label" are numbers, from 0 on, or from -1 backwards: the first is the word and the last
        the tag unless they are named. What was mended is added to `counts`.
        """
        word, tag = (_column(columns, part, usual) for part, usual in (("text", 0), ("label", -1)))
        for number, around in enumerate(in_documents(read_sentences(path, counts, word, tag)), 1):
            if not around.sentence.words:
                raise InputError(f"{around.sentence.place}: the sentence has no words; give it some or remove the line")
            yield TagCase(str(number), around)

    @classmethod
    def unlabelled(cls, lines: Iterable[Line], columns: Mapping[str, str]) -> Iterator[TagCase]:
        for number, line in enumerate(lines):
            text = line.fields.get(columns.get("text", "text"))
            if not isinstance(text, str):
                raise InputError(f"{line.place}: there is no text; give lines of text, or name the column with --text")
            yield TagCase.of_text(text, str(line.fields.get("id", number)), line.place)

    @classmethod
    def learned(cls, cases: Sequence[TagCase], settings: Mapping[str, Any]) -> Tag:
        types: set[str] = set()
        for case in cases:
            types |= {tag[2:] for tag in _tags(case) if tag != "O"}
        if not types:
            raise InputError(
                f"none of the {len(cases):,} training sentences has an entity, all tags are O; there is nothing to "
                f"learn: add sentences with entities, or name the column of the tags with --label"
            )
        labels = tuple(settings.get("labels") or labels_for(types))
        numbers_of(labels)  # refuses what is no tag
        return cls(labels, bool(settings.get("context", True)))

    @classmethod
    def told(cls, told: Mapping[str, Any], config: Mapping[str, Any]) -> Tag:
        labels = labels_in(config)
        numbers_of(labels)
        # A model from elsewhere has learned from sentences alone.
        return cls(labels, bool(told.get("context", False)), told.get("temperature", 1.0))

    def tell(self) -> dict[str, Any]:
        return {"context": self.context, "temperature": self.temperature}

    def config(self) -> dict[str, Any]:
        return label_config(self.labels)

    def head(self, sizes: BertSizes) -> nn.Module:
        return PlaceHead(sizes.width, len(self.labels), sizes.dropout)

    @property
    def names(self) -> Mapping[str, tuple[str, ...]]:
        return CLASSIFIER_NAMES

    @property
    def main(self) -> str:
        return "f1"

    def ask(self, case: TagCase, tokenizer: Tokenizer, rule: WindowRule) -> Question:
        """Return one row, or several where the sentence is longer than a window; each word is asked once, in the row
        where its first piece stands farthest from the edges."""
        room = rule.length - tokenizer.num_special(1)
        read = read_in_context(case.around, tokenizer, room) if self.context else read_alone(case.around, tokenizer)
        targets = None if case.sentence.tags is None else self._targets(case)
        windows = windows_of(tokenizer, [read.ids], rule)
        owners = windows.owners(0)  # of the pieces that were not cut off
        firsts = read.firsts[read.firsts < len(owners)]
        rows = []
        for number, row in enumerate(windows.rows):
            own = owners[firsts] == number
            places = firsts[own] - row.runs[0].first + row.runs[0].place
            wanted = None if targets is None else targets[: len(firsts)][own]
            rows.append(Asked(row, places=places, targets=wanted))
        return Question(tuple(rows), label=case.sentence.tags, num_cut=windows.num_cut)

    def _targets(self, case: TagCase) -> Ints:
        """Return the number of the label of each word."""
        return np.array([number_of(tag, self.labels, case.place) for tag in _tags(case)], dtype=np.int64)

    def labels_of(self, questions: Sequence[Question]) -> dict[str, torch.Tensor]:
        return {}

    def loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        assert batch.targets is not None
        return F.cross_entropy(outputs, batch.targets, reduction="sum")

    def num_answers(self, batch: Batch) -> int:
        assert batch.targets is not None
        return len(batch.targets)

    def answer(self, case: TagCase, question: Question, outputs: Sequence[npt.NDArray[np.float32]]) -> Tagged:
        logits = np.concatenate(outputs)  # rows follow one another in the text, and so do the words that they own
        tags, chances = decoded(logits, self.labels, self.temperature)
        spans = spans_in(case.sentence, tags, chances)
        words = case.sentence.words
        return Tagged(case.id, tags + ("O",) * (len(words) - len(tags)), spans, words, logits)

    def score(self, pairs: Iterable[tuple[TagCase, Tagged]]) -> Scored:
        """Return precision, recall and F1 of entities (of each type in the details), and how words are labelled."""
        entities, words = EntityTally(), ConfusionTally(len(self.labels))
        bins = np.zeros((NUM_BINS, 3))
        mistakes: list[Mistake] = []
        for case, prediction in pairs:
            truth = self._targets(case)
            entities.add([prediction.tags], [_tags(case)])
            words.add(np.array([number_of(tag, self.labels, case.place) for tag in prediction.tags]), truth)
            chances = chances_of(prediction.logits, self.temperature)
            if len(chances):
                bins += binned(chances, truth[: len(chances)])
            if prediction.tags != _tags(case):
                mistakes = worst([*mistakes, _mistake(case, prediction, chances.max(axis=1))])
        scores = entities.scores()
        figures = {**_figures(scores.overall), "accuracy": words.scores()["accuracy"]}
        figures["calibration_error"] = float(np.abs(bins[:, 1] - bins[:, 2]).sum() / bins[:, 0].sum())
        types = {kind: {**_figures(one), "num_entities": one.num_gold} for kind, one in scores.by_type.items()}
        details = {"types": types, "labels": self.labels, "confusion": words.counts, "bins": bins, "mistakes": mistakes}
        return Scored(figures, self.main, details)

    def calibrated(self, cases: Sequence[TagCase], predictions: Sequence[Tagged]) -> Task:
        """Return the task with the temperature under which the tags of dev's words are the most probable."""
        logits = np.concatenate([prediction.logits for prediction in predictions])
        parts = zip(cases, predictions, strict=True)
        truth = np.concatenate([self._targets(case)[: len(one.logits)] for case, one in parts])
        return replace(self, temperature=float(fit_temperature(logits, truth)))


def _figures(matches: Matches) -> dict[str, float]:
    return {"f1": matches.f1, "precision": matches.precision, "recall": matches.recall}


def _mistake(case: TagCase, prediction: Tagged, sure: npt.NDArray[Any]) -> Mistake:
    """Return what is wrong in a sentence; as sure as the model was of the surest of its wrong words that it read."""
    tags = _tags(case)
    wrong = [number for number, tag in enumerate(tags[: len(sure)]) if tag != prediction.tags[number]]
    right, said = entities_in(case.sentence, tags), entities_in(case.sentence, prediction.tags)
    return Mistake(float(sure[wrong].max(initial=0.0)), case.texts, right, said, case.place)


def _tags(case: TagCase) -> tuple[str, ...]:
    if case.sentence.tags is None:
        raise InputError(f"{case.place}: there are no tags; give them, or name their column with --label")
    return case.sentence.tags


def _column(columns: Mapping[str, str], part: str, usual: int) -> int:
    told = columns.get(part)
    if told is None:
        return usual
    try:
        return int(told)
    except ValueError:
        raise InputError(
            f"--{part} {told}: columns of words and tags have no names; give a number, 0 for the first, -1 for the last"
        ) from None
