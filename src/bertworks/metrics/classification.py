"""Predictions and labels in, scores out: whole arrays through METRICS, or batch by batch through a tally.

N examples, C classes (one of them holds) or C labels (each holds or not). Arrays of shape (N,) are classes, as numbers
from 0, or values; arrays of shape (N, C) are 0 and 1 for each label. Scores lie in 0..1, correlations in -1..1.

A tally of classes or labels keeps counts only, so its memory does not grow with the examples. A correlation of ranks
cannot be had from counts: its tally keeps two numbers an example.
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
    """What was found (`num_predicted`), what was there to find (`num_gold`), and what is in both (`num_right`)."""

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
    """Takes predictions and labels batch by batch; tells its scores by name at any time after the first."""

    def add(self, predictions: Numbers, labels: Numbers) -> None: ...

    def scores(self) -> dict[str, float]: ...


class ConfusionTally:
    """Counts for one class an example. `counts[gold, predicted]` is the confusion matrix, (C, C)."""

    def __init__(self, num_classes: int) -> None:
        self.counts = np.zeros((num_classes, num_classes), dtype=np.int64)

    def add(self, predictions: Numbers, labels: Numbers) -> None:
        """Count a batch, (N,) and (N,)."""
        assert predictions.shape == labels.shape, (predictions.shape, labels.shape)
        assert predictions.ndim == 1, predictions.shape
        # A number below 0 would count from the end: a wrong score instead of an error.
        assert predictions.size == 0 or min(predictions.min(), labels.min()) >= 0, "a class below 0"
        np.add.at(self.counts, (labels.astype(np.int64), predictions.astype(np.int64)), 1)

    def by_class(self) -> tuple[Matches, ...]:
        """Return how each class was found."""
        columns = zip(self.counts.diagonal(), self.counts.sum(axis=0), self.counts.sum(axis=1), strict=True)
        return tuple(Matches(int(right), int(predicted), int(gold)) for right, predicted, gold in columns)

    def scores(self) -> dict[str, float]:
        """Return accuracy, macro F1 and Matthews; with two classes also the F1 of class 1, as GLUE has it."""
        total = _check_not_empty(int(self.counts.sum()))
        classes = self.by_class()
        # A class that occurs nowhere was neither found nor missed, so it is left out of the mean, as scikit-learn does.
        seen = [matches.f1 for matches in classes if matches.num_gold or matches.num_predicted]
        scores = {
            "accuracy": sum(matches.num_correct for matches in classes) / total,
            "macro_f1": math.fsum(seen) / len(seen),
            "matthews": _matthews(classes, total),
        }
        if len(classes) == 2:
            scores["f1"] = classes[1].f1
        return scores


class LabelsTally:
    """Counts for any number of labels an example: how each label was found, and how many examples are wholly right."""

    def __init__(self, num_labels: int) -> None:
        self._correct = np.zeros(num_labels, dtype=np.int64)
        self._predicted = np.zeros(num_labels, dtype=np.int64)
        self._gold = np.zeros(num_labels, dtype=np.int64)
        self._num_examples = 0
        self._num_exact_matches = 0

    def add(self, predictions: Numbers, labels: Numbers) -> None:
        """Count a batch, (N, C) and (N, C) of 0 and 1."""
        assert predictions.shape == labels.shape, (predictions.shape, labels.shape)
        assert predictions.ndim == 2, predictions.shape
        predicted, gold = predictions.astype(bool), labels.astype(bool)
        self._correct += (predicted & gold).sum(axis=0)
        self._predicted += predicted.sum(axis=0)
        self._gold += gold.sum(axis=0)
        self._num_examples += len(gold)
        self._num_exact_matches += int((predicted == gold).all(axis=1).sum())

    def by_label(self) -> tuple[Matches, ...]:
        """Return how each label was found."""
        columns = zip(self._correct, self._predicted, self._gold, strict=True)
        return tuple(Matches(int(right), int(predicted), int(gold)) for right, predicted, gold in columns)

    def scores(self) -> dict[str, float]:
        """Return micro F1 (all decisions together), macro F1 (mean over labels) and accuracy (all labels right)."""
        total = _check_not_empty(self._num_examples)
        every = Matches(int(self._correct.sum()), int(self._predicted.sum()), int(self._gold.sum()))
        labels = self.by_label()
        return {
            "micro_f1": every.f1,
            "macro_f1": math.fsum(matches.f1 for matches in labels) / len(labels),
            "accuracy": self._num_exact_matches / total,
        }


class CorrelationTally:
    """Keeps the predicted and the true values of a regression: 16 bytes an example."""

    def __init__(self) -> None:
        self._predictions = array("d")
        self._labels = array("d")

    def add(self, predictions: Numbers, labels: Numbers) -> None:
        """Keep a batch, (N,) and (N,)."""
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
    """Return the share of examples that are right; with (N, C) labels, right in every label."""
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
    """Return the F1 of all decisions together; with one class an example that is its accuracy."""
    scores = _tally_arrays(predictions, labels).scores()
    return scores.get("micro_f1", scores["accuracy"])


def matthews(predictions: Numbers, labels: Numbers) -> float:
    """Return Matthews' correlation of two or more classes; 0 where either side knows one class only."""
    assert predictions.ndim == 1, predictions.shape
    return _tally_arrays(predictions, labels).scores()["matthews"]


def pearson(predictions: Numbers, labels: Numbers) -> float:
    """Return how straight a line predictions and labels lie on; 0 where either side is constant."""
    assert predictions.shape == labels.shape, (predictions.shape, labels.shape)
    _check_not_empty(len(labels))
    first, second = _unit_vector(predictions), _unit_vector(labels)
    if first is None or second is None:
        return 0.0  # undefined, but a run that says the same of everything must lose against every other
    return float(np.clip(first @ second, -1.0, 1.0))


def spearman(predictions: Numbers, labels: Numbers) -> float:
    """Return how alike predictions and labels order the examples; 0 where either side is constant."""
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
    """Return the tally of whole arrays: the one place where each score is worked out."""
    tally: ScoreTally
    if labels.ndim == 2:
        tally = LabelsTally(labels.shape[1])
    else:
        tally = ConfusionTally(max(2, int(max(predictions.max(initial=0), labels.max(initial=0))) + 1))
    tally.add(predictions, labels)
    return tally


def _matthews(classes: tuple[Matches, ...], total: int) -> float:
    """Return the correlation of Gorodkin (2004), which for two classes is that of Matthews."""
    # Python's whole numbers do not overflow; 2^63 is soon reached by products of counts.
    right = sum(matches.num_correct for matches in classes)
    together = right * total - sum(matches.num_predicted * matches.num_gold for matches in classes)
    predicted = total**2 - sum(matches.num_predicted**2 for matches in classes)
    gold = total**2 - sum(matches.num_gold**2 for matches in classes)
    return together / math.sqrt(predicted * gold) if predicted and gold else 0.0


def _unit_vector(values: Numbers) -> npt.NDArray[np.float64] | None:
    """Return the values less their mean, scaled to length 1; nothing if all are the same."""
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        raise InputError("a value to be correlated is not a number: the run has diverged; lower its learning rate")
    # Rounding gives equal values a mean that differs from them, so they are compared before it is taken away.
    if values.min() == values.max():
        return None
    centred = values - values.mean()
    return centred / np.linalg.norm(centred)


def _ranks(values: Numbers) -> npt.NDArray[np.float64]:
    """Return the rank of each value; equal values share the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which]


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _check_not_empty(num_examples: int) -> int:
    if num_examples == 0:
        raise InputError("there is no example to score; give a file with at least one labelled line")
    return num_examples
