"""Translation with a fine-tuned model: texts in, translations out, in order and in constant memory."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace

from bertworks.datasets.labelled_texts import TextExample
from bertworks.inference.predictor import Predictor
from bertworks.tasks.beam_search_settings import BeamSearchSettings
from bertworks.tasks.contract import GenerativeTask
from bertworks.tasks.translate import TranslationPrediction
from bertworks.text.document import Counts

UNFINISHED_TRANSLATIONS = "translations reached the length limit before the end token, and are incomplete"


def with_search_settings(predictor: Predictor, search_settings: BeamSearchSettings) -> Predictor:
    """Return a predictor with the same weights and other beam search settings."""
    module = copy.copy(predictor.module)
    assert isinstance(module.task, GenerativeTask)
    module.task = module.task.with_search_settings(search_settings)
    return replace(predictor, module=module)


def translate_texts(
    predictor: Predictor, texts: Iterable[str], counts: Counts | None = None
) -> Iterator[TranslationPrediction]:
    """Yield the translation of each text, an empty one for an empty text; incomplete ones are added to `counts`."""
    examples = (TextExample(str(index), f"text {index}", (text,)) for index, text in enumerate(texts))
    for _, prediction in predictor.predict(examples, counts):
        if counts is not None and not prediction.is_finished:
            counts[UNFINISHED_TRANSLATIONS] += 1
        yield prediction
