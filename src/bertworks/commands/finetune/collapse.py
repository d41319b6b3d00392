"""The confusion counts of dev in; out, if the model says one class of everything: why, and what will be done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# A class with this share of dev is the answer a model may rightly start with.
_DOMINANT_RATIO = 0.9


def describe_collapse(
    counts: npt.NDArray[Any],
    names: Sequence[str],
    remedy: str = "The run is started again with another seed.",
) -> str | None:
    """Return a sentence if one class only was predicted though dev has several, else nothing.

    `counts[gold, predicted]` are those of `ConfusionTally`, `names` the classes in its order; `remedy` says what the
    caller will do.
    """
    gold, predicted = counts.sum(axis=1), counts.sum(axis=0)
    if np.count_nonzero(predicted) != 1 or np.count_nonzero(gold) < 2:
        return None
    only = int(predicted.argmax())
    total, own = int(gold.sum()), int(gold[only])
    return (
        f"collapsed: all {total:,} dev examples were called '{names[only]}', which {own:,} of them are, though "
        f"dev has {np.count_nonzero(gold)} classes. {_reason(own / total, own == gold.max())} {remedy}"
    )


def _reason(class_ratio: float, is_most_frequent: bool) -> str:
    if class_ratio >= _DOMINANT_RATIO:
        return (
            f"That class is {class_ratio:.0%} of dev, so the model may just not have seen enough of the others yet: more "
            f"epochs or more examples of them help."
        )
    if is_most_frequent:
        return (
            "Only how frequent the classes are was learnt: most often the learning rate is too high for so few "
            "examples, or the seed unlucky; if every seed does so, look whether the labels fit the texts."
        )
    return (
        "It is not even the most frequent class, so the weights were thrown far off: most often the learning rate is "
        "too high or the warmup too short."
    )
