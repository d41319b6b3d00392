"""Detect a model that predicts one class for everything: a confusion matrix in, an explanation out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# Predicting only a class that is this frequent may be an early stage of training rather than a failure.
_DOMINANT_RATIO = 0.9


def describe_collapse(
    counts: npt.NDArray[Any],
    names: Sequence[str],
    remedy: str = "The run is restarted with another seed.",
) -> str | None:
    """Return a message if a single class was predicted though dev has several, else None.

    `counts[gold, predicted]` is the confusion matrix, `names` its classes in order; `remedy` says what the caller does.
    """
    gold, predicted = counts.sum(axis=1), counts.sum(axis=0)
    if np.count_nonzero(predicted) != 1 or np.count_nonzero(gold) < 2:
        return None
    predicted_class = int(predicted.argmax())
    total, num_correct = int(gold.sum()), int(gold[predicted_class])
    cause = _cause(num_correct / total, num_correct == gold.max())
    return (
        f"collapsed: all {total:,} dev examples are predicted '{names[predicted_class]}', the label of {num_correct:,} "
        f"of them; dev has {np.count_nonzero(gold)} classes. {cause} {remedy}"
    )


def _cause(class_ratio: float, is_most_frequent: bool) -> str:
    if class_ratio >= _DOMINANT_RATIO:
        return (
            f"That class is {class_ratio:.0%} of dev, so the model may have seen too few examples of the others: train "
            f"for more epochs or add examples of them."
        )
    if is_most_frequent:
        return (
            "The model learned only the class frequencies: the learning rate may be too high for so few examples, or "
            "the seed unlucky. If every seed does this, check that the labels match the texts."
        )
    return (
        "It is not the most frequent class, so training diverged: the learning rate is probably too high or the warmup "
        "too short."
    )
