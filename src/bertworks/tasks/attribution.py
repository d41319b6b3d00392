"""What the attribution targets of several tasks share: coefficients of a contrast, and texts with their tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.tasks.contract import AttributionTarget, PredictionContext, SourceText
from bertworks.vocabulary.tokenizer import Tokenizer


def contrast_coefficients(count: int, index: int) -> npt.NDArray[Any]:
    """Return the coefficients of "score `index` minus the mean of the other scores"."""
    if count == 1:
        return np.ones(1)
    coefficients = np.full(count, -1 / (count - 1))
    coefficients[index] = 1.0
    return coefficients


def source_text(title: str, text: str, tokenizer: Tokenizer) -> SourceText:
    return SourceText(title, text, tokenizer.tokenize(text))


def text_target(context: PredictionContext, name: str, coefficients: npt.NDArray[Any]) -> AttributionTarget:
    """Return the target of a text or pair whose outputs (C,) are averaged over all windows."""
    texts, num_windows = context.example.texts, len(context.features.sequences)
    titles = ("text", "pair") if len(texts) > 1 else ("text",)
    sources = tuple((index, 0) for index in range(len(texts)))
    return AttributionTarget(
        name,
        tuple(source_text(title, text, context.tokenizer) for title, text in zip(titles, texts, strict=True)),
        (coefficients / num_windows,) * num_windows,
        (sources,) * num_windows,
    )
