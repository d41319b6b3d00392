"""Labels of a tagging model: logits of words in, tags and entity spans with probabilities out.

Labels are BIO tags, or plain: parts of speech, entity types without a prefix (IO) or transformers' default LABEL_0. A
word has a plain label as it is, and adjacent words of one label are one span if there is an O for what is outside of
spans; else each word is a span of its own.

W words, C labels.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.datasets.conll import Sentence, are_plain, check_bio, repair_tags, spans_of
from bertworks.errors import InputError
from bertworks.metrics.calibration import reliability

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[Any]

NUM_BINS = 15

# The labels that may stand for a tag, in order of preference: other models may know only I- (IOB1 without adjacent
# entities), or use BIOES or BMES.
_TAG_FALLBACKS = {"B": "BISU", "I": "IMELB"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EntitySpan:
    """An entity: the characters from `start` to `end`, exclusive, of the given text, verbatim in `text`.

    `probability` is that all its words are labelled correctly, assumed independent: the product of the probabilities of
    their labels.
    """

    start: int
    end: int
    label: str
    text: str
    probability: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __repr__(self) -> str:
        return f"EntitySpan({self.text!r}, {self.label}, {self.start}:{self.end}, probability={self.probability:.3f})"


def labels_for(tags: Iterable[str]) -> tuple[str, ...]:
    """Return the labels for tags that occur: O, then B- and I- of each entity type, or the plain tags, alphabetically;
    only O if there are no others."""
    names = set(tags) - {"O"}
    if are_plain(names):
        return (*({"O"} & set(tags)), *sorted(names))
    return ("O", *(f"{prefix}-{kind}" for kind in sorted({tag[2:] for tag in names}) for prefix in "BI"))


@functools.lru_cache(maxsize=64)
def is_bio(labels: tuple[str, ...]) -> bool:
    """Whether all labels of a model are BIO tags, or those of a scheme that is read as BIO."""
    try:
        for label in labels:
            check_bio(label, "the labels of the model")
    except InputError:
        return False
    return True


@functools.lru_cache(maxsize=64)
def label_ids_of(labels: tuple[str, ...]) -> Mapping[str, int]:
    """Return the label id of each tag: of BIO tags, or of the plain labels themselves."""
    if not is_bio(labels):
        return {label: index for index, label in enumerate(labels)}
    ids_by_label = {label if label == "O" else f"{label[0]}-{label[2:]}": index for index, label in enumerate(labels)}
    label_ids = {"O": ids_by_label["O"]} if "O" in ids_by_label else {}
    for kind in {label[2:] for label in labels if label != "O"}:
        for prefix, fallbacks in _TAG_FALLBACKS.items():
            index = next(
                (ids_by_label[name] for fallback in fallbacks if (name := f"{fallback}-{kind}") in ids_by_label), None
            )
            if index is not None:
                label_ids[f"{prefix}-{kind}"] = index
    return label_ids


def label_id_of(tag: str, labels: tuple[str, ...], location: str) -> int:
    """Return the label id of a tag; raise InputError if the training sentences do not have it."""
    label_id = label_ids_of(labels).get(tag)
    if label_id is None:
        raise InputError(
            f"{location}: the tag '{tag}' does not occur in the training sentences; the labels are: {', '.join(labels)}"
        )
    return label_id


def decode_tags(logits: Floats, labels: tuple[str, ...], temperature: float) -> tuple[tuple[str, ...], Floats]:
    """Return the tags of words from their logits (W, C), and the probability of each predicted label (W,).

    Each word gets its most probable label. Illegal BIO tags are then repaired from left to right: I-X that continues no
    X (after O, after another type, at the start) becomes B-X, and other schemes become BIO. The probability stays that
    of the predicted label.
    """
    predicted = [labels[index] for index in logits.argmax(axis=1)]
    tags = repair_tags(predicted)[0] if is_bio(labels) else tuple(predicted)
    return tags, label_probabilities(logits, temperature).max(axis=1)


def word_spans(tags: Sequence[str], labels: tuple[str, ...]) -> tuple[tuple[int, int, str], ...]:
    """Return the first word, the end and the label of each span of tags that are predicted with these labels."""
    if is_bio(labels):
        return spans_of(tags)
    spans: list[tuple[int, int, str]] = []
    for index, tag in enumerate(tags):
        is_continued = "O" in labels and bool(spans) and spans[-1][1:] == (index, tag)
        if tag != "O":
            spans = [*spans[:-1], (spans[-1][0], index + 1, tag)] if is_continued else [*spans, (index, index + 1, tag)]
    return tuple(spans)


def spans_in(
    sentence: Sentence, tags: Sequence[str], probabilities: Floats, labels: tuple[str, ...]
) -> tuple[EntitySpan, ...]:
    """Return the entities of a tagged sentence, with offsets into its text."""
    spans = []
    for first, stop, label in word_spans(tags, labels):
        start, end = sentence.offsets[first][0], sentence.offsets[stop - 1][1]
        probability = float(np.prod(probabilities[first:stop]))
        spans.append(
            EntitySpan(start=start, end=end, label=label, text=sentence.text[start:end], probability=probability)
        )
    return tuple(spans)


def label_probabilities(logits: Floats, temperature: float) -> Floats:
    """Return the probability of each label of each word, (W, C)."""
    scaled = logits.astype(np.float64) / temperature
    exponentials = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def reliability_bins(probabilities: Floats, label_ids: Ints) -> Floats:
    """Return the bins of a reliability diagram as sums that can be added up: count, confidence, accuracy."""
    bins = reliability(probabilities, label_ids, NUM_BINS)
    return np.array(
        [
            [
                reliability_bin.count,
                reliability_bin.count * reliability_bin.confidence,
                reliability_bin.count * reliability_bin.accuracy,
            ]
            for reliability_bin in bins
        ]
    )


def format_entities(sentence: Sentence, tags: Sequence[str], labels: tuple[str, ...]) -> str:
    """Return the entities of a sentence as text: "PER: John Smith; LOC: Rome"."""
    offsets = sentence.offsets
    spans = [
        (label, sentence.text[offsets[first][0] : offsets[stop - 1][1]])
        for first, stop, label in word_spans(tags, labels)
    ]
    return "; ".join(f"{label}: {text}" for label, text in spans) or "nothing"


def resolve_word_and_label(
    target: str, sentence: Sentence, word_indices: Sequence[int], labels: Sequence[str]
) -> tuple[int, int | None]:
    """Return which of the predicted words an attribution target names, and its label id, None if it names no label.

    A target is "Paris" or "Paris=B-LOC", or has the index of the word instead: "3=B-LOC". `word_indices` are the
    predicted words: not all of them where texts are truncated.
    """
    words = [sentence.words[index] for index in word_indices]
    name, _, tag = target.rpartition("=")
    if not name or tag not in labels:
        name, tag = target, ""
        if "=" in target and target not in sentence.words:
            raise InputError(f"there is no label '{target.rpartition('=')[2]}'; choose one of: {', '.join(labels)}")
    if name in words:
        word = words.index(name)
    elif name.isdecimal() and int(name) in word_indices:
        word = word_indices.index(int(name))
    elif name in sentence.words or (name.isdecimal() and int(name) < len(sentence.words)):
        raise InputError(f"{sentence.location}: the word '{name}' was truncated by the model's window rule")
    else:
        raise InputError(f"{sentence.location}: there is no word '{name}' to explain; give a word, or its index from 0")
    return word, labels.index(tag) if tag else None
