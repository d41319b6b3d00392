"""A model that translates put to use: texts in, translations out, one after the other and in constant memory."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace

from bertworks.datasets.labelled_texts import TextCase
from bertworks.inference.predictor import Predictor
from bertworks.tasks.beam_search import Searching
from bertworks.tasks.translate import Translate, Translated
from bertworks.text.document import Counts

UNFINISHED = "translations did not come to an end within the pieces allowed, and stand as far as they went"


def searching_with(predictor: Predictor, searching: Searching) -> Predictor:
    """Return what translates by another search; the weights are the same."""
    module = copy.copy(predictor.module)
    assert isinstance(module.task, Translate)
    module.task = replace(module.task, searching=searching)
    return replace(predictor, module=module)


def translations(predictor: Predictor, texts: Iterable[str], counts: Counts | None = None) -> Iterator[Translated]:
    """Yield the translation of each text, an empty one of an empty text; what is unfinished is counted."""
    cases = (TextCase(str(number), f"text {number}", (text,)) for number, text in enumerate(texts))
    for _, one in predictor.predict(cases, counts):
        if counts is not None and not one.is_whole:
            counts[UNFINISHED] += 1
        yield one
