"""A model that translates put to use: texts in, translations out, one after the other and in constant memory."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace

from bertworks.datasets.labelled_texts import TextExample
from bertworks.inference.predictor import Predictor
from bertworks.tasks.beam_search import BeamSearchSettings
from bertworks.tasks.translate import Translate, TranslationPrediction
from bertworks.text.document import Counts

UNFINISHED_TRANSLATIONS = "translations did not come to an end within the pieces allowed, and stand as far as they went"


def with_search_settings(predictor: Predictor, search_settings: BeamSearchSettings) -> Predictor:
    """Return what translates by another search; the weights are the same."""
    module = copy.copy(predictor.module)
    assert isinstance(module.task, Translate)
    module.task = replace(module.task, search_settings=search_settings)
    return replace(predictor, module=module)


def translate_texts(
    predictor: Predictor, texts: Iterable[str], counts: Counts | None = None
) -> Iterator[TranslationPrediction]:
    """Yield the translation of each text, an empty one of an empty text; what is unfinished is counted."""
    cases = (TextExample(str(number), f"text {number}", (text,)) for number, text in enumerate(texts))
    for _, one in predictor.predict(cases, counts):
        if counts is not None and not one.is_whole:
            counts[UNFINISHED_TRANSLATIONS] += 1
        yield one
