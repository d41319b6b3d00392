"""Logits and labels of dev in, the temperature that makes probabilities honest out, and how honest they are.

N examples, C classes. Labels of shape (N,) are classes: the probabilities of an example sum to 1 (softmax). Labels of
shape (N, C) are 0 and 1: every label has a probability of its own (sigmoid). Dividing logits by a temperature changes
neither which class is the most probable nor which label is above one half, only how sure the model says it is.
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

# No real model needs more; a dev set that asks for more is too small to say.
LOWEST_TEMPERATURE = 0.05
HIGHEST_TEMPERATURE = 20.0


@dataclass(frozen=True, slots=True)
class Bin:
    """The decisions whose confidence is above `low` and up to `high`: what was said on average, and what came true."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, slots=True)
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
    return Calibration(temperature, _error(before), _error(after), before, after)


def fit_temperature(logits: Numbers, labels: Numbers) -> float:
    """Return the temperature between the bounds above under which the labels are the most probable.

    If no example is wrong the labels become more probable without end as the temperature falls. Such a dev set does
    not say how sure to be, so the temperature is then 1: the probabilities stay as they are.
    """
    # Imported here: it takes most of a second, and a model that is served never fits.
    from scipy.optimize import minimize_scalar

    logits = _check_scores(logits, labels)
    if _has_no_mistakes(logits, labels):
        return 1.0
    # The loss is convex in 1 / temperature, hence has one valley in its logarithm, where the bounds are 0 ± 3.
    found = minimize_scalar(
        lambda power: _loss(logits / math.exp(power), labels),
        bounds=(math.log(LOWEST_TEMPERATURE), math.log(HIGHEST_TEMPERATURE)),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return math.exp(float(found.x))


def reliability(probabilities: Numbers, labels: Numbers, num_bins: int = 15) -> tuple[Bin, ...]:
    """Return the bins of a reliability plot, equally wide; an empty one has count 0 and says nothing.

    Of classes, a decision is the most probable class and whether it is right; of labels, each label of each example,
    with the probability that it holds and whether it does.
    """
    confidences, truths = _decisions(probabilities, labels)
    # A bin holds its upper edge and not its lower one, but the first holds 0 too.
    which = np.clip(np.ceil(confidences * num_bins).astype(np.int64) - 1, 0, num_bins - 1)
    counts = np.bincount(which, minlength=num_bins)
    said = np.bincount(which, weights=confidences, minlength=num_bins) / np.maximum(counts, 1)
    came = np.bincount(which, weights=truths, minlength=num_bins) / np.maximum(counts, 1)
    return tuple(
        Bin(number / num_bins, (number + 1) / num_bins, int(count), float(confidence), float(accuracy))
        for number, (count, confidence, accuracy) in enumerate(zip(counts, said, came, strict=True))
    )


def calibration_error(probabilities: Numbers, labels: Numbers, num_bins: int = 15) -> float:
    """Return the expected calibration error: by how much what was said differs from what came true, on average."""
    return _error(reliability(probabilities, labels, num_bins))


def _error(bins: tuple[Bin, ...]) -> float:
    total = sum(one.count for one in bins)
    return math.fsum(one.count * abs(one.accuracy - one.confidence) for one in bins) / total


def _decisions(probabilities: Numbers, labels: Numbers) -> tuple[Floats, Floats]:
    """Return how probable each decision was said to be, and 1 where it came true."""
    probabilities = _check_scores(probabilities, labels)
    if labels.ndim == 2:
        return probabilities.ravel(), labels.ravel().astype(np.float64)
    return probabilities.max(axis=1), (probabilities.argmax(axis=1) == labels).astype(np.float64)


def _probabilities(logits: Numbers, labels: Numbers) -> Floats:
    """Return the probabilities (N, C) of labels of that kind."""
    logits = logits.astype(np.float64)
    return np.exp(-np.logaddexp(0.0, -logits)) if labels.ndim == 2 else np.exp(_log_softmax(logits))


def _loss(logits: Floats, labels: Numbers) -> float:
    """Return the mean negative log-likelihood of the labels."""
    if labels.ndim == 2:
        # -log sigmoid(z) where the label holds, -log sigmoid(-z) where it does not
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
    """Return logits or probabilities in double precision, if they can be calibrated."""
    assert scores.ndim == 2, scores.shape
    assert scores.shape[: labels.ndim] == labels.shape, (scores.shape, labels.shape)
    if len(scores) == 0:
        raise InputError("there is no example to calibrate on; give a dev file with at least one labelled line")
    # An ending that an example does not have may stand at minus infinity: probability 0.
    if np.isnan(scores).any() or np.isposinf(scores).any():
        raise InputError("a score to be calibrated is not a number: the run has diverged; lower its learning rate")
    return scores.astype(np.float64)
