"""Temperature scaling: logits and labels of dev in, the temperature and the calibration error out.

N examples, C classes. Labels of shape (N,) are classes: the probabilities of an example sum to 1 (softmax). Labels of
shape (N, C) are 0 and 1: every label has its own probability (sigmoid). Dividing logits by a temperature changes
neither the most probable class nor which labels are above one half, only the confidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.errors import InputError

Numbers = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

# No real model needs more; a dev set that does is too small.
LOWEST_TEMPERATURE = 0.05
HIGHEST_TEMPERATURE = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """The predictions whose confidence is above `low` and up to `high`: mean confidence and accuracy."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The temperature fitted on some examples, and their calibration before and after."""

    temperature: float
    error_before: float
    error_after: float
    bins_before: tuple[Bin, ...]
    bins_after: tuple[Bin, ...]


def calibrate(logits: Numbers, labels: Numbers, num_bins: int = 15) -> Calibration:
    """Fit the temperature and compare the calibration with and without it."""
    temperature = fit_temperature(logits, labels)
    before = reliability(_probabilities(logits, labels), labels, num_bins)
    after = reliability(_probabilities(logits / temperature, labels), labels, num_bins)
    return Calibration(
        temperature=temperature,
        error_before=_error(before),
        error_after=_error(after),
        bins_before=before,
        bins_after=after,
    )


def fit_temperature(logits: Numbers, labels: Numbers) -> float:
    """Return the temperature, within the bounds above, that maximizes the likelihood of the labels.

    If no example is wrong, the likelihood grows without bound as the temperature falls. Such a dev set says nothing
    about confidence, so the temperature is then 1.
    """
    # Imported here: it takes most of a second, and a server never fits a temperature.
    from scipy.optimize import minimize_scalar

    logits = _check_scores(logits, labels)
    if _has_no_mistakes(logits, labels):
        return 1.0
    # The loss is convex in 1 / temperature, hence unimodal in its logarithm, where the bounds are 0 ± 3.
    result = minimize_scalar(
        lambda log_temperature: _loss(logits / math.exp(log_temperature), labels),
        bounds=(math.log(LOWEST_TEMPERATURE), math.log(HIGHEST_TEMPERATURE)),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return math.exp(float(result.x))


def reliability(probabilities: Numbers, labels: Numbers, num_bins: int = 15) -> tuple[Bin, ...]:
    """Return the bins of a reliability diagram, of equal width; an empty bin has count 0.

    A prediction is the most probable class of an example; of multi-label examples, each label of each example.
    """
    confidences, is_correct = _confidences(probabilities, labels)
    # A bin includes its upper edge and not its lower one; the first also includes 0.
    bin_indices = np.clip(np.ceil(confidences * num_bins).astype(np.int64) - 1, 0, num_bins - 1)
    counts = np.bincount(bin_indices, minlength=num_bins)
    mean_confidences = np.bincount(bin_indices, weights=confidences, minlength=num_bins) / np.maximum(counts, 1)
    accuracies = np.bincount(bin_indices, weights=is_correct, minlength=num_bins) / np.maximum(counts, 1)
    return tuple(
        Bin(
            low=index / num_bins,
            high=(index + 1) / num_bins,
            count=int(count),
            confidence=float(confidence),
            accuracy=float(accuracy),
        )
        for index, (count, confidence, accuracy) in enumerate(zip(counts, mean_confidences, accuracies, strict=True))
    )


def calibration_error(probabilities: Numbers, labels: Numbers, num_bins: int = 15) -> float:
    """Return the expected calibration error: the mean difference between confidence and accuracy."""
    return _error(reliability(probabilities, labels, num_bins))


def _error(bins: tuple[Bin, ...]) -> float:
    total = sum(reliability_bin.count for reliability_bin in bins)
    gaps = (
        reliability_bin.count * abs(reliability_bin.accuracy - reliability_bin.confidence) for reliability_bin in bins
    )
    return math.fsum(gaps) / total


def _confidences(probabilities: Numbers, labels: Numbers) -> tuple[Floats, Floats]:
    """Return the confidence of each prediction, and 1 where it is correct."""
    probabilities = _check_scores(probabilities, labels)
    if labels.ndim == 2:
        return probabilities.ravel(), labels.ravel().astype(np.float64)
    return probabilities.max(axis=1), (probabilities.argmax(axis=1) == labels).astype(np.float64)


def _probabilities(logits: Numbers, labels: Numbers) -> Floats:
    """Return probabilities (N, C): a softmax for classes, sigmoids for multi-label."""
    logits = logits.astype(np.float64)
    return np.exp(-np.logaddexp(0.0, -logits)) if labels.ndim == 2 else np.exp(_log_softmax(logits))


def _loss(logits: Floats, labels: Numbers) -> float:
    """Return the mean negative log-likelihood of the labels."""
    if labels.ndim == 2:
        # -log sigmoid(z) for label 1, -log sigmoid(-z) for label 0
        return float(np.logaddexp(0.0, np.where(labels.astype(bool), -logits, logits)).mean())
    return -float(_log_softmax(logits)[np.arange(len(labels)), labels].mean())


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(axis=1, keepdims=True)  # (N, C), at most 0: exp cannot overflow
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _has_no_mistakes(logits: Floats, labels: Numbers) -> bool:
    if labels.ndim == 2:
        return bool((np.where(labels.astype(bool), logits, -logits) >= 0).all())
    return bool((logits[np.arange(len(labels)), labels] == logits.max(axis=1)).all())


def _check_scores(scores: Numbers, labels: Numbers) -> Floats:
    """Return logits or probabilities in double precision; raise InputError if they are empty or not finite."""
    assert scores.ndim == 2, scores.shape
    assert scores.shape[: labels.ndim] == labels.shape, (scores.shape, labels.shape)
    if len(scores) == 0:
        raise InputError("there are no examples to calibrate on; give a dev file with at least one labelled line")
    # Missing endings of a multiple-choice example are -inf: probability 0.
    if np.isnan(scores).any() or np.isposinf(scores).any():
        raise InputError("the model outputs NaN or infinity: its training diverged; use a lower learning rate")
    return scores.astype(np.float64)
