"""Tag words: sentences with tags in, BIO or plain ones such as parts of speech; entities with offsets and
probabilities out.

A word is predicted at its first token; its other tokens, and the document around it, are context. An example is a
document, or a passage of a long one: its sentences share sequences, each is predicted in one of them, and neighbouring
sequences have the window rule's overlap in common. S sentences, W words, P target positions, C labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from bertworks.datasets.conll import Sentence, are_plain, check_bio, read_sentences
from bertworks.datasets.files import Record
from bertworks.errors import InputError
from bertworks.metrics.calibration import fit_temperature
from bertworks.metrics.classification import ConfusionTally, Matches
from bertworks.metrics.entities import Entity, EntityTally
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.attribution import contrast_coefficients
from bertworks.tasks.classify import label_config, labels_in
from bertworks.tasks.contract import (
    AttributionTarget,
    Features,
    InputFields,
    Mistake,
    PredictionContext,
    SourceText,
    Task,
    TaskScores,
    worst_mistakes,
)
from bertworks.tasks.inputs import TEXT
from bertworks.tasks.tag_documents import (
    Ints,
    group_by_document,
    input_sequences_of,
    pack_sentences,
    separate_sentences,
    tokenize_alone,
    tokenize_in_context,
    tokenize_with_offsets,
    windows_of_range,
)
from bertworks.tasks.tag_examples import TagExample, TagFeatures, TagPrediction, labelled_fields, tags_of
from bertworks.tasks.tag_labels import (
    NUM_BINS,
    decode_tags,
    format_entities,
    is_bio,
    label_id_of,
    label_probabilities,
    labels_for,
    reliability_bins,
    resolve_word_and_label,
    spans_in,
    word_spans,
)
from bertworks.text.document import Counts
from bertworks.vocabulary.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch
    from torch import nn

    from bertworks.encoders.config import EncoderConfig
    from bertworks.sampling.batch import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """Named entity recognition. With `context` a sentence is encoded with its document around it."""

    name: ClassVar[str] = "tag"
    head_kind: ClassVar[str] = "tokens"
    # A quarter of a sequence is context: an eighth on either side of the predicted sentences.
    default_window_rule: ClassVar[WindowRule] = WindowRule(512, 128)
    input_fields: ClassVar[tuple[InputFields, ...]] = (TEXT,)
    labelled_fields = staticmethod(labelled_fields)
    labels: tuple[str, ...]
    context: bool = True
    temperature: float = 1.0

    @classmethod
    def read(cls, path: Path, columns: Mapping[str, str], counts: Counts | None = None) -> Iterator[TagExample]:
        """Yield the documents of a file of CoNLL columns, or of JSON Lines with spans or tokens.

        CoNLL columns are indices, from 0 on or from -1 backwards: by default the word ("text") is the first and the tag
        ("label") the last. Repaired tags are added to `counts`.
        """
        word, tag = (_column(columns, role, default) for role, default in (("text", 0), ("label", -1)))
        sentences = map(_require_words, read_sentences(path, counts, word, tag))
        for number, context in enumerate(group_by_document(sentences), 1):
            yield TagExample(str(number), context)

    @classmethod
    def read_unlabelled(cls, records: Iterable[Record], columns: Mapping[str, str]) -> Iterator[TagExample]:
        for number, record in enumerate(records):
            text = record.fields.get(columns.get("text", "text"))
            if not isinstance(text, str):
                raise InputError(f"{record.location}: there is no text; give lines of text, or its column with --text")
            yield TagExample.from_text(text, str(record.fields.get("id", number)), record.location)

    @classmethod
    def from_examples(cls, examples: Sequence[TagExample], settings: Mapping[str, Any]) -> Tag:
        sentences = [sentence for example in examples for sentence in example.context.sentences]
        tags = {tag for sentence in sentences for tag in tags_of(sentence)}
        labels = tuple(settings.get("labels", ()))
        if not are_plain(tags):
            for label in labels:
                check_bio(label, "the labels of the model")
            for sentence in sentences:
                for tag in tags_of(sentence):
                    check_bio(tag, sentence.location)
        labels = labels or labels_for(tags)
        if len(labels) < 2:
            raise InputError(
                f"all words of the {len(sentences):,} training sentences have the tag {labels[0]}, so there is nothing "
                f"to learn; add sentences with other tags, or name the column of the tags with --label"
            )
        return cls(labels=labels, context=bool(settings.get("context", True)))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> Tag:
        labels = labels_in(config)
        # Models of others were trained on single sentences.
        context, temperature = bool(metadata.get("context", False)), metadata.get("temperature", 1.0)
        return cls(labels=labels, context=context, temperature=temperature)

    @classmethod
    def matches_config(cls, config: Mapping[str, Any]) -> bool:
        return True

    def metadata(self) -> dict[str, Any]:
        return {"context": self.context, "temperature": self.temperature}

    def config(self) -> dict[str, Any]:
        return label_config(self.labels)

    def head(self, config: EncoderConfig) -> nn.Module:
        from bertworks.tasks.heads import PositionHead

        return PositionHead(config.hidden_size, len(self.labels), config.hidden_dropout_prob)

    @property
    def main_metric(self) -> str:
        return "f1"

    def featurize(self, example: TagExample, tokenizer: Tokenizer, window_rule: WindowRule) -> TagFeatures:
        """Return the sequences of all sentences, each sentence between half the rule's overlap of context on either
        side, or alone without `context`.

        A sentence longer than a window has several; each of its words is predicted once, in the window where its first
        token is farthest from the edges.
        """
        margin = window_rule.overlap // 2
        if self.context:
            passage = tokenize_in_context(example.context, tokenizer, margin)
            ranges = list(pack_sentences(passage, window_rule.max_length - tokenizer.num_special_tokens(1), margin))
        else:
            passage = tokenize_alone(example.context, tokenizer)
            ranges = list(separate_sentences(passage))
        targets = None if example.sentence.tags is None else self._targets(example)
        word_edges = example.context.word_edges
        parts, word_indices = [], []
        for sentence_range in ranges:
            words = slice(word_edges[sentence_range.first], word_edges[sentence_range.stop])
            begin, windows = windows_of_range(passage, sentence_range, tokenizer, window_rule)
            sequences = input_sequences_of(
                windows, begin, passage.first_tokens[words], None if targets is None else targets[words]
            )
            parts.append(
                Features(
                    sequences=sequences,
                    num_truncated=windows.num_truncated,
                    num_examples=sentence_range.stop - sentence_range.first,
                )
            )
            # Truncation removes words at the end of a range only.
            num_words = sum(sequence.num_positions for sequence in sequences)
            word_indices.append(np.arange(words.start, words.start + num_words))
        return TagFeatures(
            sequences=tuple(sequence for part in parts for sequence in part.sequences),
            label=example.sentence.tags,
            num_truncated=sum(part.num_truncated for part in parts),
            num_examples=sum(part.num_examples for part in parts),
            parts=tuple(parts),
            word_indices=np.concatenate(word_indices),
        )

    def _targets(self, example: TagExample) -> Ints:
        """Return the label id of each word."""
        sentences = example.context.sentences
        label_ids = [
            label_id_of(tag, self.labels, sentence.location) for sentence in sentences for tag in tags_of(sentence)
        ]
        return np.array(label_ids, dtype=np.int64)

    def collate_labels(self, features: Sequence[Features]) -> dict[str, torch.Tensor]:
        return {}

    def loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        import torch.nn.functional as F  # noqa: N812

        assert batch.targets is not None
        return F.cross_entropy(outputs, batch.targets, reduction="sum")

    def num_targets(self, batch: Batch) -> int:
        assert batch.targets is not None
        return len(batch.targets)

    def decode(
        self, example: TagExample, features: Features, outputs: Sequence[npt.NDArray[np.float32]]
    ) -> TagPrediction:
        assert isinstance(features, TagFeatures)
        logits = np.concatenate(outputs)  # the words of consecutive sequences are consecutive
        words, word_indices = example.sentence.words, features.word_indices
        tags, probabilities = ["O"] * len(words), np.ones(len(words))
        # Each sentence separately: an entity does not continue in the next one.
        ends = np.searchsorted(word_indices, example.context.word_edges[1:-1])
        for rows in np.split(np.arange(len(logits)), ends):
            sentence_tags, probabilities[word_indices[rows]] = decode_tags(logits[rows], self.labels, self.temperature)
            for index, tag in zip(word_indices[rows], sentence_tags, strict=True):
                tags[index] = tag
        return TagPrediction(
            id=example.id,
            tags=tuple(tags),
            spans=spans_in(example.sentence, tags, probabilities, self.labels),
            words=words,
            text=example.sentence.text,
            logits=logits,
            word_indices=word_indices,
        )

    def score(self, pairs: Iterable[tuple[TagExample, TagPrediction]]) -> TaskScores:
        """Return precision, recall and F1 of entities (details: by type), and the accuracy of words. Of plain tags
        without O every word is an entity, so that all four are equal."""
        entities, words = EntityTally(), ConfusionTally(len(self.labels))
        bins = np.zeros((NUM_BINS, 3))
        mistakes: list[Mistake] = []
        for example, prediction in pairs:
            targets, indices = self._targets(example), prediction.logit_word_indices
            words.add(np.array([label_id_of(tag, self.labels, example.location) for tag in prediction.tags]), targets)
            probabilities = label_probabilities(prediction.logits, self.temperature)
            if len(probabilities):
                bins += reliability_bins(probabilities, targets[indices])
            confidences = np.zeros(len(targets))
            confidences[indices] = probabilities.max(axis=1, initial=0.0)
            for sentence, (first, stop) in zip(
                example.context.sentences, pairwise(example.context.word_edges), strict=True
            ):
                tags = prediction.tags[first:stop]
                if is_bio(self.labels):
                    entities.add([tags], [tags_of(sentence)])
                else:
                    entities.add_entities(*(_entities(some, self.labels) for some in (tags, tags_of(sentence))))
                if tags != sentence.tags:
                    mistake = _mistake(sentence, tags, confidences[first:stop], self.labels)
                    mistakes = worst_mistakes([*mistakes, mistake])
        scores = entities.scores()
        metrics = {**_metrics(scores.overall), "accuracy": words.scores()["accuracy"]}
        metrics["calibration_error"] = float(np.abs(bins[:, 1] - bins[:, 2]).sum() / bins[:, 0].sum())
        types = {
            kind: {**_metrics(matches), "num_entities": matches.num_gold} for kind, matches in scores.by_type.items()
        }
        details = {"types": types, "labels": self.labels, "confusion": words.counts, "bins": bins, "mistakes": mistakes}
        return TaskScores(metrics=metrics, main_metric=self.main_metric, details=details)

    def calibrate(self, examples: Sequence[TagExample], predictions: Sequence[TagPrediction]) -> Task:
        """Return the task with the temperature fitted on the words of dev."""
        logits = np.concatenate([prediction.logits for prediction in predictions])
        pairs = zip(examples, predictions, strict=True)
        targets = np.concatenate([self._targets(example)[tagged.logit_word_indices] for example, tagged in pairs])
        return replace(self, temperature=float(fit_temperature(logits, targets)))

    def submission_value(self, prediction: TagPrediction) -> str:
        return " ".join(prediction.tags)

    def attribution_target(self, context: PredictionContext, target: str | None) -> AttributionTarget:
        """Explain the label of a word: "Paris", "Paris=B-LOC", or with the word's index, "3=B-LOC".

        By default it is the first word of the most probable entity, or, without entities, the word that is nearest to
        being one.
        """
        features, example = context.features, context.example
        assert isinstance(features, TagFeatures)
        logits = np.concatenate(list(context.outputs))  # (predicted words, C)
        word_indices = features.word_indices.tolist()
        label: int | None = None
        if target is None:
            word = self._default_word(context, word_indices, logits)
        else:
            word, label = resolve_word_and_label(target, example.sentence, word_indices, self.labels)
        if label is None:
            label = int(logits[word].argmax())
        coefficients: list[npt.NDArray[Any] | None] = []
        first_word = 0
        for output in context.outputs:
            sequence_coefficients = None
            if first_word <= word < first_word + len(output):
                sequence_coefficients = np.zeros(output.shape)
                sequence_coefficients[word - first_word] = contrast_coefficients(len(self.labels), label)
            coefficients.append(sequence_coefficients)
            first_word += len(output)
        text = SourceText("text", example.sentence.text, tokenize_with_offsets(example.context, context.tokenizer))
        name = f"'{example.sentence.words[word_indices[word]]}' as {self.labels[label]}"
        sources = ((0, _first_token(features)),)
        return AttributionTarget(name, (text,), tuple(coefficients), (sources,) * len(coefficients))

    def _default_word(
        self, context: PredictionContext, word_indices: list[int], logits: npt.NDArray[np.float32]
    ) -> int:
        spans = self.decode(context.example, context.features, context.outputs).spans
        if spans:
            start = max(spans, key=lambda span: span.probability).start
            offsets = context.example.sentence.offsets
            return next(position for position, index in enumerate(word_indices) if offsets[index][0] == start)
        best_two = np.sort(logits, axis=1)[:, -2:]
        return int((best_two[:, -1] - best_two[:, 0]).argmin())


def _first_token(features: Features) -> int:
    """Return the index of the first word's first token among all tokens: those of its document are before it."""
    for sequence in features.sequences:
        if sequence.positions is not None and len(sequence.positions):
            span = sequence.spans[0]
            return int(sequence.positions[0]) - span.position + span.first
    raise AssertionError("an example without words has no attribution target")


def _entities(tags: Sequence[str], labels: tuple[str, ...]) -> set[Entity]:
    return {(label, first, stop - 1) for first, stop, label in word_spans(tags, labels)}


def _metrics(matches: Matches) -> dict[str, float]:
    return {"f1": matches.f1, "precision": matches.precision, "recall": matches.recall}


def _mistake(
    sentence: Sentence, predicted: tuple[str, ...], confidences: npt.NDArray[Any], labels: tuple[str, ...]
) -> Mistake:
    """Return the mistake of a sentence; its confidence is the highest among its wrong words."""
    tags = tags_of(sentence)
    wrong = [index for index, tag in enumerate(tags) if tag != predicted[index]]
    return Mistake(
        confidence=float(confidences[wrong].max(initial=0.0)),
        texts=(sentence.text,),
        expected=format_entities(sentence, tags, labels),
        predicted=format_entities(sentence, predicted, labels),
        location=sentence.location,
    )


def _require_words(sentence: Sentence) -> Sentence:
    if not sentence.words:
        raise InputError(f"{sentence.location}: the sentence has no words; give it some or remove the line")
    return sentence


def _column(columns: Mapping[str, str], role: str, default: int) -> int:
    value = columns.get(role)
    if value is None:
        return default
    try:
        return int(value)
    except ValueError:
        raise InputError(
            f"--{role} {value}: columns of words and tags have no names; give an index: 0 is the first, -1 the last"
        ) from None
