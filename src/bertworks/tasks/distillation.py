"""Distillation from a bag of words: training texts in, batches of recombined texts with the teacher's predictions out.

The teacher is TF-IDF with logistic regression, fitted to the training texts. A recombined text is made of spans of
them: any number of new texts, on which a small model learns what the teacher knows of words while it learns the labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from bertworks.datasets.labelled_texts import TextExample
from bertworks.sampling.batch import Batch
from bertworks.tasks.bag_of_words import Predict, Values, has_spaces
from bertworks.tasks.batching import batch_of_features
from bertworks.tasks.contract import Features, Task

# The loss part of these batches.
DISTILLATION = "distillation"
# The number of recombined texts in a batch.
_NUM_TEXTS = 64
# Of cross-validation.
_NUM_FOLDS = 5
# Of a recombined text, in words or, where the script has no spaces, in characters: the shortest and the longest span,
# and the longest text.
_WORDS, _CHARACTERS = (2, 8, 32), (4, 16, 48)


@runtime_checkable
class TaughtTask(Protocol):
    """A task that a bag of words can teach: an optional part of the task contract. Its examples are single texts."""

    def fit_teacher(self, examples: Sequence[TextExample]) -> Predict:
        """Fit a bag of words to training examples; return what predicts the class probabilities of others, (N, C)."""
        ...

    def num_wrong(self, examples: Sequence[TextExample], probabilities: Values) -> int:
        """Return of how many examples the predicted class is not the label, given class probabilities (N, C)."""
        ...


class Recombination:
    """Makes texts of random spans of the given ones, as long as these are, up to a limit."""

    def __init__(self, texts: Sequence[str]) -> None:
        is_spaced = has_spaces(texts)
        self._separator = " " if is_spaced else ""
        self._min_span, self._max_span, self._max_length = _WORDS if is_spaced else _CHARACTERS
        split_texts = [text.split() if is_spaced else list(text) for text in texts]
        self._texts = [words for words in split_texts if words] or [[""]]

    def make_text(self, generator: np.random.Generator) -> str:
        """Return a new text."""
        length = min(len(self._choose(generator)), self._max_length)
        words: list[str] = []
        while len(words) < length:
            source, size = self._choose(generator), int(generator.integers(self._min_span, self._max_span + 1))
            first = int(generator.integers(max(1, len(source) - size + 1)))
            words += source[first : first + size]
        return self._separator.join(words)

    def _choose(self, generator: np.random.Generator) -> list[str]:
        return self._texts[int(generator.integers(len(self._texts)))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distillation:
    """The teacher of a task, the recombined texts, and how the model reads them."""

    task: Task
    teacher: Predict
    recombination: Recombination
    featurize: Callable[[TextExample], Features]
    pad: int

    def make_batch(self, generator: np.random.Generator) -> Batch:
        """Return a batch of recombined texts, whose labels are the probabilities of the teacher."""
        texts = [self.recombination.make_text(generator) for _ in range(_NUM_TEXTS)]
        examples = [TextExample("", "a recombined text", (text,)) for text in texts]
        probabilities = self.teacher(examples).astype(np.float32)  # (N, C)
        features = [
            replace(self.featurize(example), label=label)
            for example, label in zip(examples, probabilities, strict=True)
        ]
        return replace(batch_of_features(features, self.task, self.pad), loss_part=DISTILLATION)


def can_distill(task: type[Task], examples: Sequence[Any]) -> bool:
    """Whether a bag of words can teach the task, given its training examples."""
    return issubclass(task, TaughtTask) and all(len(example.texts) == 1 for example in examples)


def held_out_error(task: Task, examples: Sequence[TextExample]) -> float:
    """Return the fraction of training examples that a bag of words of the others gets wrong, by cross-validation."""
    assert isinstance(task, TaughtTask)
    num_wrong = 0
    for fold in range(_NUM_FOLDS):
        held_out, others = (
            examples[fold::_NUM_FOLDS],
            [example for index, example in enumerate(examples) if index % _NUM_FOLDS != fold],
        )
        if held_out and others:
            num_wrong += task.num_wrong(held_out, task.fit_teacher(others)(held_out))
    return num_wrong / len(examples)


def fit_distillation(
    task: Task, examples: Sequence[TextExample], featurize: Callable[[TextExample], Features], pad: int
) -> Distillation:
    """Fit the teacher to the training examples."""
    assert isinstance(task, TaughtTask)
    recombination = Recombination([example.texts[0] for example in examples])
    return Distillation(
        task=task,
        teacher=task.fit_teacher(examples),
        recombination=recombination,
        featurize=featurize,
        pad=pad,
    )
