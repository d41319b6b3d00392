"""Weights of classes in the loss: class counts, or a text such as "spam=3,ham=1", in; a factor per class out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.errors import SettingsError

BALANCED = "balanced"


def balanced_weights(counts: npt.NDArray[Any], num_examples: int, multi_label: bool) -> tuple[float, ...]:
    """Return weights inverse to the class frequencies, as scikit-learn's "balanced": every class has the same total.

    Multi-label: the weight of the texts that have a label, against those that have not. A class without examples has 1.
    """
    totals = num_examples - counts if multi_label else np.full(len(counts), num_examples / np.count_nonzero(counts))
    return tuple(float(total / count) if total and count else 1.0 for total, count in zip(totals, counts, strict=True))


def parse_class_weights(text: str, labels: Sequence[str]) -> tuple[float, ...]:
    """Return the weights in a text such as "spam=3,ham=1"; classes that it does not name have 1."""
    weights = dict.fromkeys(labels, 1.0)
    for part in text.split(","):
        label, equals, value = (word.strip() for word in part.rpartition("="))
        if not equals:
            raise SettingsError(
                f'class_weights is \'{text}\'; write it as "{labels[0]}=2,{labels[-1]}=1" or "balanced"'
            )
        if label not in weights:
            raise SettingsError(f"class_weights names '{label}', but the classes are: {', '.join(labels)}")
        try:
            weights[label] = float(value)
        except ValueError:
            raise SettingsError(f"class_weights: the weight of '{label}' is '{value}'; give a number") from None
        if not 0 < weights[label] < np.inf:
            raise SettingsError(f"class_weights: the weight of '{label}' is {value}; it must be above 0")
    return tuple(weights.values())
