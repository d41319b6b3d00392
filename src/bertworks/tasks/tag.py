"""Tag words: sentences with BIO tags in, entities with offsets and probabilities out.

Only the first piece of a word is asked; its other pieces, and the document around it, are read. A case is a document,
or a passage of a long one: its sentences stand together in rows, each asked in one of them, and neighbouring rows have
the rule's overlap in common as context. S sentences, W words, P places that are asked, C labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from bertworks.datasets.conll import Sentence, read_sentences, split_words
from bertworks.datasets.files import Line
from bertworks.encoders.stack import BertSizes
from bertworks.errors import InputError
from bertworks.metrics.calibration import fit_temperature
from bertworks.metrics.classification import ConfusionTally, Matches
from bertworks.metrics.entities import EntityTally
from bertworks.sampling.batch import Batch
from bertworks.sampling.windows import WindowRule, Windows, windows_of
from bertworks.tasks.classify import label_config, labels_in
from bertworks.tasks.contract import Asked, Mistake, Question, Scored, Task, worst
from bertworks.tasks.heads import PlaceHead
from bertworks.tasks.tag_documents import (
    NUM_BINS,
    Around,
    Ints,
    Read,
    Span,
    Stretch,
    binned,
    chances_of,
    decoded,
    each_alone,
    entities_in,
    in_documents,
    labels_for,
    number_of,
    numbers_of,
    packed,
    read_alone,
    read_in_context,
    spans_in,
)
from bertworks.text.document import Counts
from bertworks.vocabulary.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TagCase:
    """Sentences with their tags, None where they are not known, and what is around them, where nothing is asked.

    `sentence` has the words of all of them; mostly they are a whole document.
    """

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
    def examples(self) -> tuple[tuple[str, ...], ...]:
        return tuple((one.text,) for one in self.around.sentences)

    @property
    def label(self) -> tuple[str, ...] | None:
        return self.sentence.tags


@dataclass(frozen=True, slots=True, kw_only=True)
class TagQuestion(Question):
    """The rows of a case, and the numbers of the words that are asked there, in their order: (W,)."""

    words: Ints


@dataclass(frozen=True, slots=True)
class Tagged:
    """The words of a case with legal BIO tags, the entities that they say, and the logits of the words asked.

    `asked` are the numbers of these, None where it is all of them: a word that was cut off by request is O and has no
    logits.
    """

    id: str
    tags: tuple[str, ...]
    spans: tuple[Span, ...]
    words: tuple[str, ...] = ()
    logits: npt.NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), dtype=np.float32))
    asked: Ints | None = None

    @property
    def numbers(self) -> Ints:
        return np.arange(len(self.logits)) if self.asked is None else self.asked

    def as_json(self) -> dict[str, Any]:
        spans = [span.as_json() for span in self.spans]
        return {"id": self.id, "words": list(self.words), "tags": list(self.tags), "spans": spans}


@dataclass(frozen=True, slots=True)
class Tag:
    """Which words are entities, and of what type? With `context` a sentence is read with its document around it."""

    name: ClassVar[str] = "tag"
    head_kind: ClassVar[str] = "places"
    # A quarter of a row is context: an eighth on either side of what is asked.
    default_rule: ClassVar[WindowRule] = WindowRule(512, 128)
    labels: tuple[str, ...]
    context: bool = True
    temperature: float = 1.0

    @classmethod
    def read(cls, path: Path, columns: Mapping[str, str], counts: Counts | None = None) -> Iterator[TagCase]:
        """Yield the documents of a file of CoNLL columns, or of JSON Lines with spans or with tokens.

        The columns "text" and "label" are numbers, from 0 on, or from -1 backwards: the first is the word and the last
        the tag unless they are named. What was mended is added to `counts`.
        """
        word, tag = (_column(columns, part, usual) for part, usual in (("text", 0), ("label", -1)))
        sentences = map(_with_words, read_sentences(path, counts, word, tag))
        for number, around in enumerate(in_documents(sentences), 1):
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
        num_sentences = 0
        for case in cases:
            types |= {tag[2:] for one in case.around.sentences for tag in _tags(one) if tag != "O"}
            num_sentences += len(case.around.sentences)
        if not types:
            raise InputError(
                f"none of the {num_sentences:,} training sentences has an entity, all tags are O; there is nothing to "
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
    def main(self) -> str:
        return "f1"

    def ask(self, case: TagCase, tokenizer: Tokenizer, rule: WindowRule) -> TagQuestion:
        """Return the rows of all sentences, each asked in one row between half the rule's overlap on either side, or
        alone if there is no context.

        A sentence longer than a window slides; each of its words is asked once, in the row where its first piece stands
        farthest from the edges.
        """
        margin = rule.overlap // 2
        if self.context:
            read = read_in_context(case.around, tokenizer, margin)
            stretches = list(packed(read, rule.length - tokenizer.num_special(1), margin))
        else:
            read = read_alone(case.around, tokenizer)
            stretches = list(each_alone(read))
        targets = None if case.sentence.tags is None else self._targets(case)
        edges = case.around.word_edges
        parts, words = [], []
        for stretch in stretches:
            own = slice(edges[stretch.first], edges[stretch.stop])
            begin, windows = _windows(read, stretch, tokenizer, rule)
            rows = _rows(windows, begin, read.firsts[own], None if targets is None else targets[own])
            parts.append(Question(rows, num_cut=windows.num_cut, num_examples=stretch.stop - stretch.first))
            # What was cut off is the end of a sentence, of one that stands alone.
            words.append(np.arange(own.start, own.start + sum(row.num_places for row in rows)))
        return TagQuestion(
            rows=tuple(row for part in parts for row in part.rows),
            label=case.sentence.tags,
            num_cut=sum(part.num_cut for part in parts),
            num_examples=sum(part.num_examples for part in parts),
            parts=tuple(parts),
            words=np.concatenate(words),
        )

    def _targets(self, case: TagCase) -> Ints:
        """Return the number of the label of each word."""
        found = [number_of(tag, self.labels, one.place) for one in case.around.sentences for tag in _tags(one)]
        return np.array(found, dtype=np.int64)

    def labels_of(self, questions: Sequence[Question]) -> dict[str, torch.Tensor]:
        return {}

    def loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        assert batch.targets is not None
        return F.cross_entropy(outputs, batch.targets, reduction="sum")

    def num_answers(self, batch: Batch) -> int:
        assert batch.targets is not None
        return len(batch.targets)

    def answer(self, case: TagCase, question: Question, outputs: Sequence[npt.NDArray[np.float32]]) -> Tagged:
        assert isinstance(question, TagQuestion)
        logits = np.concatenate(outputs)  # rows follow one another in the text, and so do the words that they own
        tags, chances = ["O"] * len(case.sentence.words), np.ones(len(case.sentence.words))
        # Each sentence by itself: an entity does not go on in the next one.
        for own in np.split(np.arange(len(logits)), np.searchsorted(question.words, case.around.word_edges[1:-1])):
            found, chances[question.words[own]] = decoded(logits[own], self.labels, self.temperature)
            for number, tag in zip(question.words[own], found, strict=True):
                tags[number] = tag
        spans = spans_in(case.sentence, tags, chances)
        return Tagged(case.id, tuple(tags), spans, case.sentence.words, logits, question.words)

    def score(self, pairs: Iterable[tuple[TagCase, Tagged]]) -> Scored:
        """Return precision, recall and F1 of entities (of each type in the details), and how words are labelled."""
        entities, words = EntityTally(), ConfusionTally(len(self.labels))
        bins = np.zeros((NUM_BINS, 3))
        mistakes: list[Mistake] = []
        for case, prediction in pairs:
            truth = self._targets(case)
            words.add(np.array([number_of(tag, self.labels, case.place) for tag in prediction.tags]), truth)
            chances = chances_of(prediction.logits, self.temperature)
            if len(chances):
                bins += binned(chances, truth[prediction.numbers])
            sure = np.zeros(len(truth))
            sure[prediction.numbers] = chances.max(axis=1, initial=0.0)
            for one, (first, stop) in zip(case.around.sentences, pairwise(case.around.word_edges), strict=True):
                tags = prediction.tags[first:stop]
                entities.add([tags], [_tags(one)])
                if tags != one.tags:
                    mistakes = worst([*mistakes, _mistake(one, tags, sure[first:stop])])
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
        truth = np.concatenate([self._targets(case)[one.numbers] for case, one in parts])
        return replace(self, temperature=float(fit_temperature(logits, truth)))


def _windows(read: Read, stretch: Stretch, tokenizer: Tokenizer, rule: WindowRule) -> tuple[int, Windows]:
    """Return the row of a stretch, or the rows over which it slides, and the piece with which they begin."""
    begin, end = stretch.begin, stretch.end
    if rule.truncate and end - begin > rule.length - tokenizer.num_special(1):
        begin, end = read.edges[[stretch.first, stretch.stop]].tolist()  # what is cut off shall be its own end
    return begin, windows_of(tokenizer, [read.cut.between(begin, end)], rule)


def _rows(windows: Windows, begin: int, firsts: Ints, targets: Ints | None) -> tuple[Asked, ...]:
    """Return rows that ask each word once, given by its first piece; but for those that were cut off."""
    owners = windows.owners(0)  # of the pieces that were not
    firsts = firsts[firsts - begin < len(owners)] - begin
    rows = []
    for number, row in enumerate(windows.rows):
        (run,) = row.runs
        own = np.flatnonzero(owners[firsts] == number)
        window = replace(row, runs=(replace(run, first=begin + run.first),))
        wanted = None if targets is None else targets[own]
        rows.append(Asked(window, places=firsts[own] - run.first + run.place, targets=wanted))
    return tuple(rows)


def _figures(matches: Matches) -> dict[str, float]:
    return {"f1": matches.f1, "precision": matches.precision, "recall": matches.recall}


def _mistake(sentence: Sentence, said: tuple[str, ...], sure: npt.NDArray[Any]) -> Mistake:
    """Return what is wrong in a sentence; as sure as the model was of the surest of its wrong words that it read."""
    tags = _tags(sentence)
    wrong = [number for number, tag in enumerate(tags) if tag != said[number]]
    right = entities_in(sentence, tags), entities_in(sentence, said)
    return Mistake(float(sure[wrong].max(initial=0.0)), (sentence.text,), *right, sentence.place)


def _tags(sentence: Sentence) -> tuple[str, ...]:
    if sentence.tags is None:
        raise InputError(f"{sentence.place}: there are no tags; give them, or name their column with --label")
    return sentence.tags


def _with_words(sentence: Sentence) -> Sentence:
    if not sentence.words:
        raise InputError(f"{sentence.place}: the sentence has no words; give it some or remove the line")
    return sentence


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
