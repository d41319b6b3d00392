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
from bertworks.datasets.files import Record
from bertworks.encoders.stack import BertConfig
from bertworks.errors import InputError
from bertworks.metrics.calibration import fit_temperature
from bertworks.metrics.classification import ConfusionTally, Matches
from bertworks.metrics.entities import EntityTally
from bertworks.sampling.batch import Batch
from bertworks.sampling.windows import WindowRule, Windows, make_windows
from bertworks.tasks.classify import label_config, labels_in
from bertworks.tasks.contract import Features, InputSequence, Mistake, Task, TaskScores, worst_mistakes
from bertworks.tasks.heads import PositionHead
from bertworks.tasks.tag_documents import (
    NUM_BINS,
    EntitySpan,
    Ints,
    SentenceContext,
    SentenceRange,
    TokenizedPassage,
    decode_tags,
    entities_in,
    group_by_document,
    label_id_of,
    label_ids_of,
    label_probabilities,
    labels_for,
    pack_sentences,
    reliability_bins,
    separate_sentences,
    spans_in,
    tokenize_alone,
    tokenize_in_context,
)
from bertworks.text.document import Counts
from bertworks.vocabulary.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TagExample:
    """Sentences with their tags, None where they are not known, and what is around them, where nothing is asked.

    `sentence` has the words of all of them; mostly they are a whole document.
    """

    id: str
    context: SentenceContext

    @classmethod
    def from_text(cls, text: str, name: str = "1", location: str = "the text") -> TagExample:
        """Return a case for a plain text: a word is what stands between white space and punctuation, an ideograph, or
        one such mark. Files of spans are cut in the same way."""
        words, offsets = split_words(text)
        return cls(name, SentenceContext(Sentence(words, None, text, offsets, 0, location)))

    @property
    def sentence(self) -> Sentence:
        return self.context.sentence

    @property
    def location(self) -> str:
        return self.sentence.location

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.sentence.text,)

    @property
    def examples(self) -> tuple[tuple[str, ...], ...]:
        return tuple((one.text,) for one in self.context.sentences)

    @property
    def label(self) -> tuple[str, ...] | None:
        return self.sentence.tags


@dataclass(frozen=True, slots=True, kw_only=True)
class TagFeatures(Features):
    """The rows of a case, and the numbers of the words that are asked there, in their order: (W,)."""

    word_indices: Ints


@dataclass(frozen=True, slots=True)
class TagPrediction:
    """The words of a case with legal BIO tags, the entities that they say, and the logits of the words asked.

    `asked` are the numbers of these, None where it is all of them: a word that was cut off by request is O and has no
    logits.
    """

    id: str
    tags: tuple[str, ...]
    spans: tuple[EntitySpan, ...]
    words: tuple[str, ...] = ()
    logits: npt.NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), dtype=np.float32))
    word_indices: Ints | None = None

    @property
    def logit_word_indices(self) -> Ints:
        return np.arange(len(self.logits)) if self.word_indices is None else self.word_indices

    def to_dict(self) -> dict[str, Any]:
        spans = [span.to_dict() for span in self.spans]
        return {"id": self.id, "words": list(self.words), "tags": list(self.tags), "spans": spans}


@dataclass(frozen=True, slots=True)
class Tag:
    """Which words are entities, and of what type? With `context` a sentence is read with its document around it."""

    name: ClassVar[str] = "tag"
    head_kind: ClassVar[str] = "places"
    # A quarter of a row is context: an eighth on either side of what is asked.
    default_window_rule: ClassVar[WindowRule] = WindowRule(512, 128)
    labels: tuple[str, ...]
    context: bool = True
    temperature: float = 1.0

    @classmethod
    def read(cls, path: Path, columns: Mapping[str, str], counts: Counts | None = None) -> Iterator[TagExample]:
        """Yield the documents of a file of CoNLL columns, or of JSON Lines with spans or with tokens.

        The columns "text" and "label" are numbers, from 0 on, or from -1 backwards: the first is the word and the last
        the tag unless they are named. What was mended is added to `counts`.
        """
        word, tag = (_column(columns, part, usual) for part, usual in (("text", 0), ("label", -1)))
        sentences = map(_require_words, read_sentences(path, counts, word, tag))
        for number, around in enumerate(group_by_document(sentences), 1):
            yield TagExample(str(number), around)

    @classmethod
    def read_unlabelled(cls, records: Iterable[Record], columns: Mapping[str, str]) -> Iterator[TagExample]:
        for number, line in enumerate(records):
            text = line.fields.get(columns.get("text", "text"))
            if not isinstance(text, str):
                raise InputError(
                    f"{line.location}: there is no text; give lines of text, or name the column with --text"
                )
            yield TagExample.from_text(text, str(line.fields.get("id", number)), line.location)

    @classmethod
    def from_examples(cls, examples: Sequence[TagExample], settings: Mapping[str, Any]) -> Tag:
        types: set[str] = set()
        num_sentences = 0
        for case in examples:
            types |= {tag[2:] for one in case.context.sentences for tag in _tags(one) if tag != "O"}
            num_sentences += len(case.context.sentences)
        if not types:
            raise InputError(
                f"none of the {num_sentences:,} training sentences has an entity, all tags are O; there is nothing to "
                f"learn: add sentences with entities, or name the column of the tags with --label"
            )
        labels = tuple(settings.get("labels") or labels_for(types))
        label_ids_of(labels)  # refuses what is no tag
        return cls(labels, bool(settings.get("context", True)))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> Tag:
        labels = labels_in(config)
        label_ids_of(labels)
        # A model from elsewhere has learned from sentences alone.
        return cls(labels, bool(metadata.get("context", False)), metadata.get("temperature", 1.0))

    def metadata(self) -> dict[str, Any]:
        return {"context": self.context, "temperature": self.temperature}

    def config(self) -> dict[str, Any]:
        return label_config(self.labels)

    def head(self, config: BertConfig) -> nn.Module:
        return PositionHead(config.hidden_size, len(self.labels), config.hidden_dropout_prob)

    @property
    def main_metric(self) -> str:
        return "f1"

    def featurize(self, example: TagExample, tokenizer: Tokenizer, window_rule: WindowRule) -> TagFeatures:
        """Return the rows of all sentences, each asked in one row between half the rule's overlap on either side, or
        alone if there is no context.

        A sentence longer than a window slides; each of its words is asked once, in the row where its first piece stands
        farthest from the edges.
        """
        margin = window_rule.overlap // 2
        if self.context:
            read = tokenize_in_context(example.context, tokenizer, margin)
            stretches = list(pack_sentences(read, window_rule.max_length - tokenizer.num_special_tokens(1), margin))
        else:
            read = tokenize_alone(example.context, tokenizer)
            stretches = list(separate_sentences(read))
        targets = None if example.sentence.tags is None else self._targets(example)
        edges = example.context.word_edges
        parts, words = [], []
        for stretch in stretches:
            own = slice(edges[stretch.first], edges[stretch.stop])
            begin, windows = _windows(read, stretch, tokenizer, window_rule)
            rows = _input_sequences(windows, begin, read.first_tokens[own], None if targets is None else targets[own])
            parts.append(Features(rows, num_truncated=windows.num_truncated, num_examples=stretch.stop - stretch.first))
            # What was cut off is the end of a sentence, of one that stands alone.
            words.append(np.arange(own.start, own.start + sum(row.num_positions for row in rows)))
        return TagFeatures(
            sequences=tuple(row for part in parts for row in part.sequences),
            label=example.sentence.tags,
            num_truncated=sum(part.num_truncated for part in parts),
            num_examples=sum(part.num_examples for part in parts),
            parts=tuple(parts),
            word_indices=np.concatenate(words),
        )

    def _targets(self, example: TagExample) -> Ints:
        """Return the number of the label of each word."""
        found = [label_id_of(tag, self.labels, one.location) for one in example.context.sentences for tag in _tags(one)]
        return np.array(found, dtype=np.int64)

    def collate_labels(self, features: Sequence[Features]) -> dict[str, torch.Tensor]:
        return {}

    def loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        assert batch.targets is not None
        return F.cross_entropy(outputs, batch.targets, reduction="sum")

    def num_targets(self, batch: Batch) -> int:
        assert batch.targets is not None
        return len(batch.targets)

    def decode(
        self, example: TagExample, features: Features, outputs: Sequence[npt.NDArray[np.float32]]
    ) -> TagPrediction:
        assert isinstance(features, TagFeatures)
        logits = np.concatenate(outputs)  # rows follow one another in the text, and so do the words that they own
        tags, chances = ["O"] * len(example.sentence.words), np.ones(len(example.sentence.words))
        # Each sentence by itself: an entity does not go on in the next one.
        for own in np.split(
            np.arange(len(logits)), np.searchsorted(features.word_indices, example.context.word_edges[1:-1])
        ):
            found, chances[features.word_indices[own]] = decode_tags(logits[own], self.labels, self.temperature)
            for number, tag in zip(features.word_indices[own], found, strict=True):
                tags[number] = tag
        spans = spans_in(example.sentence, tags, chances)
        return TagPrediction(example.id, tuple(tags), spans, example.sentence.words, logits, features.word_indices)

    def score(self, pairs: Iterable[tuple[TagExample, TagPrediction]]) -> TaskScores:
        """Return precision, recall and F1 of entities (of each type in the details), and how words are labelled."""
        entities, words = EntityTally(), ConfusionTally(len(self.labels))
        bins = np.zeros((NUM_BINS, 3))
        mistakes: list[Mistake] = []
        for case, prediction in pairs:
            truth = self._targets(case)
            words.add(np.array([label_id_of(tag, self.labels, case.location) for tag in prediction.tags]), truth)
            chances = label_probabilities(prediction.logits, self.temperature)
            if len(chances):
                bins += reliability_bins(chances, truth[prediction.logit_word_indices])
            sure = np.zeros(len(truth))
            sure[prediction.logit_word_indices] = chances.max(axis=1, initial=0.0)
            for one, (first, stop) in zip(case.context.sentences, pairwise(case.context.word_edges), strict=True):
                tags = prediction.tags[first:stop]
                entities.add([tags], [_tags(one)])
                if tags != one.tags:
                    mistakes = worst_mistakes([*mistakes, _mistake(one, tags, sure[first:stop])])
        scores = entities.scores()
        figures = {**_metrics(scores.overall), "accuracy": words.scores()["accuracy"]}
        figures["calibration_error"] = float(np.abs(bins[:, 1] - bins[:, 2]).sum() / bins[:, 0].sum())
        types = {kind: {**_metrics(one), "num_entities": one.num_gold} for kind, one in scores.by_type.items()}
        details = {"types": types, "labels": self.labels, "confusion": words.counts, "bins": bins, "mistakes": mistakes}
        return TaskScores(figures, self.main_metric, details)

    def calibrate(self, examples: Sequence[TagExample], predictions: Sequence[TagPrediction]) -> Task:
        """Return the task with the temperature under which the tags of dev's words are the most probable."""
        logits = np.concatenate([prediction.logits for prediction in predictions])
        parts = zip(examples, predictions, strict=True)
        truth = np.concatenate([self._targets(case)[one.logit_word_indices] for case, one in parts])
        return replace(self, temperature=float(fit_temperature(logits, truth)))


def _windows(
    passage: TokenizedPassage, sentence_range: SentenceRange, tokenizer: Tokenizer, window_rule: WindowRule
) -> tuple[int, Windows]:
    """Return the row of a stretch, or the rows over which it slides, and the piece with which they begin."""
    begin, end = sentence_range.begin, sentence_range.end
    if window_rule.truncate and end - begin > window_rule.max_length - tokenizer.num_special_tokens(1):
        begin, end = passage.edges[
            [sentence_range.first, sentence_range.stop]
        ].tolist()  # what is cut off shall be its own end
    return begin, make_windows(tokenizer, [passage.tokens.between(begin, end)], window_rule)


def _input_sequences(windows: Windows, begin: int, firsts: Ints, targets: Ints | None) -> tuple[InputSequence, ...]:
    """Return rows that ask each word once, given by its first piece; but for those that were cut off."""
    owners = windows.owners(0)  # of the pieces that were not
    firsts = firsts[firsts - begin < len(owners)] - begin
    rows = []
    for number, row in enumerate(windows.sequences):
        (run,) = row.spans
        own = np.flatnonzero(owners[firsts] == number)
        window = replace(row, spans=(replace(run, first=begin + run.first),))
        wanted = None if targets is None else targets[own]
        rows.append(InputSequence(window, positions=firsts[own] - run.first + run.position, targets=wanted))
    return tuple(rows)


def _metrics(matches: Matches) -> dict[str, float]:
    return {"f1": matches.f1, "precision": matches.precision, "recall": matches.recall}


def _mistake(sentence: Sentence, predicted: tuple[str, ...], confidences: npt.NDArray[Any]) -> Mistake:
    """Return what is wrong in a sentence; as sure as the model was of the surest of its wrong words that it read."""
    tags = _tags(sentence)
    wrong = [number for number, tag in enumerate(tags) if tag != predicted[number]]
    right = entities_in(sentence, tags), entities_in(sentence, predicted)
    return Mistake(float(confidences[wrong].max(initial=0.0)), (sentence.text,), *right, sentence.location)


def _tags(sentence: Sentence) -> tuple[str, ...]:
    if sentence.tags is None:
        raise InputError(f"{sentence.location}: there are no tags; give them, or name their column with --label")
    return sentence.tags


def _require_words(sentence: Sentence) -> Sentence:
    if not sentence.words:
        raise InputError(f"{sentence.location}: the sentence has no words; give it some or remove the line")
    return sentence


def _column(columns: Mapping[str, str], role: str, default: int) -> int:
    told = columns.get(role)
    if told is None:
        return default
    try:
        return int(told)
    except ValueError:
        raise InputError(
            f"--{role} {told}: columns of words and tags have no names; give a number, 0 for the first, -1 for the last"
        ) from None
