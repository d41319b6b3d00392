"""Predictions and labels in, scores out: whole arrays through METRICS, or batch by batch through a tally.

N examples, C classes (one per example) or C labels (any number per example). Arrays of shape (N,) are class indices or
values; arrays of shape (N, C) are 0 and 1 for each label. Scores are in 0..1, correlations in -1..1.

A tally of classes or labels keeps counts only, in constant memory. Rank correlation needs all values: its tally keeps
two numbers per example.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bertworks.errors import InputError, SettingsError

Numbers = npt.NDArray[Any]
Metric = Callable[[Numbers, Numbers], float]


@dataclass(frozen=True, slots=True)
class Matches:
    """The number of predicted items, of gold items, and of those in both (`num_correct`)."""

    num_correct: int
    num_predicted: int
    num_gold: int

    @property
    def precision(self) -> float:
        return _ratio(self.num_correct, self.num_predicted)

    @property
    def recall(self) -> float:
        return _ratio(self.num_correct, self.num_gold)

    @property
    def f1(self) -> float:
        return _ratio(2 * self.num_correct, self.num_predicted + self.num_gold)


class ScoreTally(Protocol):
    """Accumulates predictions and labels batch by batch; `scores` are by name."""

    def add(self, predictions: Numbers, labels: Numbers) -> None: ...

    def scores(self) -> dict[str, float]: ...


class ConfusionTally:
    """Single-label classification. `counts[gold, predicted]` is the confusion matrix, (C, C)."""

    def __init__(self, num_classes: int) -> None:
        self.counts = np.zeros((num_classes, num_classes), dtype=np.int64)

    def add(self, predictions: Numbers, labels: Numbers) -> None:
        """Add a batch, (N,) and (N,)."""
        assert predictions.shape == labels.shape, (predictions.shape, labels.shape)
        assert predictions.ndim == 1, predictions.shape
        # A negative index would silently count from the end.
        assert predictions.size == 0 or min(predictions.min(), labels.min()) >= 0, "negative class index"
        np.add.at(self.counts, (labels.astype(np.int64), predictions.astype(np.int64)), 1)

    def by_class(self) -> tuple[Matches, ...]:
        """Return the matches of each class."""
        columns = zip(self.counts.diagonal(), self.counts.sum(axis=0), self.counts.sum(axis=1), strict=True)
        return tuple(Matches(int(correct), int(predicted), int(gold)) for correct, predicted, gold in columns)

    def scores(self) -> dict[str, float]:
        """Return accuracy, macro F1 and Matthews; with two classes also the F1 of class 1, as in GLUE."""
        total = _check_not_empty(int(self.counts.sum()))
        classes = self.by_class()
        # Classes that do not occur are excluded from the mean, as in scikit-learn.
        class_f1s = [matches.f1 for matches in classes if matches.num_gold or matches.num_predicted]
        scores = {
            "accuracy": sum(matches.num_correct for matches in classes) / total,
            "macro_f1": math.fsum(class_f1s) / len(class_f1s),
            "matthews": _matthews(classes, total),
        }
        if len(classes) == 2:
            scores["f1"] = classes[1].f1
        return scores


class LabelsTally:
    """Multi-label classification: matches of each label, and the number of examples with all labels correct."""

    def __init__(self, num_labels: int) -> None:
        self._correct = np.zeros(num_labels, dtype=np.int64)
        self._predicted = np.zeros(num_labels, dtype=np.int64)
        self._gold = np.zeros(num_labels, dtype=np.int64)
        self._num_examples = 0
        self._num_exact_matches = 0

    def add(self, predictions: Numbers, labels: Numbers) -> None:
        """Add a batch, (N, C) and (N, C) of 0 and 1."""
        assert predictions.shape == labels.shape, (predictions.shape, labels.shape)
        assert predictions.ndim == 2, predictions.shape
        predicted, gold = predictions.astype(bool), labels.astype(bool)
        self._correct += (predicted & gold).sum(axis=0)
        self._predicted += predicted.sum(axis=0)
        self._gold += gold.sum(axis=0)
        self._num_examples += len(gold)
        self._num_exact_matches += int((predicted == gold).all(axis=1).sum())

    def by_label(self) -> tuple[Matches, ...]:
        """Return the matches of each label."""
        columns = zip(self._correct, self._predicted, self._gold, strict=True)
        return tuple(Matches(int(correct), int(predicted), int(gold)) for correct, predicted, gold in columns)

    def scores(self) -> dict[str, float]:
        """Return micro F1 (all labels together), macro F1 (mean over labels) and accuracy (all labels correct)."""
        total = _check_not_empty(self._num_examples)
        overall = Matches(int(self._correct.sum()), int(self._predicted.sum()), int(self._gold.sum()))
        labels = self.by_label()
        return {
            "micro_f1": overall.f1,
            "macro_f1": math.fsum(matches.f1 for matches in labels) / len(labels),
            "accuracy": self._num_exact_matches / total,
        }


class CorrelationTally:
    """Keeps the predicted and gold values of a regression: 16 bytes per example."""

    def __init__(self) -> None:
        self._predictions = array("d")
        self._labels = array("d")

    def add(self, predictions: Numbers, labels: Numbers) -> None:
        """Add a batch, (N,) and (N,)."""
        assert predictions.shape == labels.shape, (predictions.shape, labels.shape)
        assert predictions.ndim == 1, predictions.shape
        self._predictions.frombytes(predictions.astype(np.float64).tobytes())
        self._labels.frombytes(labels.astype(np.float64).tobytes())

    def scores(self) -> dict[str, float]:
        """Return Pearson's and Spearman's correlation."""
        _check_not_empty(len(self._labels))
        predictions, labels = np.array(self._predictions), np.array(self._labels)
        return {"pearson": pearson(predictions, labels), "spearman": spearman(predictions, labels)}


def accuracy(predictions: Numbers, labels: Numbers) -> float:
    """Return the fraction of correct examples; with (N, C) labels, correct in every label."""
    return _tally_arrays(predictions, labels).scores()["accuracy"]


def f1(predictions: Numbers, labels: Numbers) -> float:
    """Return the F1 of class 1 against class 0, as GLUE defines it for MRPC and QQP."""
    if predictions.ndim == 2 or max(predictions.max(initial=0), labels.max(initial=0)) > 1:
        raise SettingsError("the metric f1 is for two classes, 0 and 1; choose macro_f1 or micro_f1 for more")
    return _tally_arrays(predictions, labels).scores()["f1"]


def macro_f1(predictions: Numbers, labels: Numbers) -> float:
    """Return the mean of the F1 of each class or label."""
    return _tally_arrays(predictions, labels).scores()["macro_f1"]


def micro_f1(predictions: Numbers, labels: Numbers) -> float:
    """Return the F1 of all labels together; for single-label classification that is the accuracy."""
    scores = _tally_arrays(predictions, labels).scores()
    return scores.get("micro_f1", scores["accuracy"])


def matthews(predictions: Numbers, labels: Numbers) -> float:
    """Return Matthews' correlation of two or more classes; 0 if either side has one class only."""
    assert predictions.ndim == 1, predictions.shape
    return _tally_arrays(predictions, labels).scores()["matthews"]


def pearson(predictions: Numbers, labels: Numbers) -> float:
    """Return Pearson's correlation; 0 if either side is constant."""
    assert predictions.shape == labels.shape, (predictions.shape, labels.shape)
    _check_not_empty(len(labels))
    first, second = _unit_vector(predictions), _unit_vector(labels)
    if first is None or second is None:
        return 0.0  # undefined, but a constant model must score lower than any other
    return float(np.clip(first @ second, -1.0, 1.0))


def spearman(predictions: Numbers, labels: Numbers) -> float:
    """Return Spearman's rank correlation; 0 if either side is constant."""
    return pearson(_ranks(predictions), _ranks(labels))


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "micro_f1": micro_f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}


def _tally_arrays(predictions: Numbers, labels: Numbers) -> ScoreTally:
    """Return the tally of whole arrays."""
    tally: ScoreTally
    if labels.ndim == 2:
        tally = LabelsTally(labels.shape[1])
    else:
        tally = ConfusionTally(max(2, int(max(predictions.max(initial=0), labels.max(initial=0))) + 1))
    tally.add(predictions, labels)
    return tally


def _matthews(classes: tuple[Matches, ...], total: int) -> float:
    """Return the correlation of Gorodkin (2004), which for two classes is that of Matthews."""
    # Python integers, since products of counts may exceed 2^63.
    num_correct = sum(matches.num_correct for matches in classes)
    covariance = num_correct * total - sum(matches.num_predicted * matches.num_gold for matches in classes)
    predicted = total**2 - sum(matches.num_predicted**2 for matches in classes)
    gold = total**2 - sum(matches.num_gold**2 for matches in classes)
    return covariance / math.sqrt(predicted * gold) if predicted and gold else 0.0


def _unit_vector(values: Numbers) -> npt.NDArray[np.float64] | None:
    """Return the values minus their mean, scaled to norm 1; None if all are equal."""
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        raise InputError("the model outputs NaN or infinity: its training diverged; use a lower learning rate")
    # Compared before centering: the mean of equal values may differ from them by rounding.
    if values.min() == values.max():
        return None
    centered = values - values.mean()
    return centered / np.linalg.norm(centered)


def _ranks(values: Numbers) -> npt.NDArray[np.float64]:
    """Return the rank of each value; equal values share the mean of theirs."""
    _, indices, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[indices]


def _ratio(part: int, total: int) -> float:
    return part / total if total else 0.0


def _check_not_empty(num_examples: int) -> int:
    if num_examples == 0:
        raise InputError("there are no examples to score; give a file with at least one labelled line")
    return num_examples
