"""Baselines of a task: training and other examples in, the scores of simple models on the same examples out.

They show what fine-tuning adds: a score means little without that of the most frequent class, or of a bag of words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from bertworks.tasks.contract import Task, TaskScores


@dataclass(frozen=True, slots=True)
class Baseline:
    """A simple model. `name` is its key in files, `title` is for readers.

    predict       examples in, their predictions in the same order out: what `Task.score` takes
    num_examples  how many training examples it was fitted to
    """

    name: str
    title: str
    predict: Callable[[Sequence[Any]], Iterable[Any]]
    num_examples: int


@runtime_checkable
class BaselineTask(Protocol):
    """A task with baselines: an optional part of the task contract."""

    def fit_baselines(self, examples: Sequence[Any]) -> Iterator[Baseline]:
        """Yield baselines fitted to training examples, from the simplest to the strongest."""
        ...


@dataclass(frozen=True, slots=True)
class BaselineScores:
    """The scores of a baseline by split. `title` also says if it was fitted to a part of the training examples."""

    name: str
    title: str
    scores: Mapping[str, TaskScores]

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return the metrics of each split, as run.json has them."""
        return {split: dict(split_scores.metrics) for split, split_scores in self.scores.items()}


def score_baselines(task: Task, train: Sequence[Any], splits: Mapping[str, Sequence[Any]]) -> Iterator[BaselineScores]:
    """Fit the baselines of a task and yield the scores of each; none if it has no baselines or nothing is scored."""
    if not isinstance(task, BaselineTask) or not splits:
        return
    for baseline in task.fit_baselines(train):
        scores = {
            split: task.score(zip(examples, baseline.predict(examples), strict=True))
            for split, examples in splits.items()
        }
        yield BaselineScores(baseline.name, _describe(baseline, len(train)), scores)


def _describe(baseline: Baseline, num_train: int) -> str:
    if baseline.num_examples == num_train:
        return baseline.title
    return f"{baseline.title}, fitted to {baseline.num_examples:,} of {num_train:,} examples"
