"""A fine-tuned model and labelled files in, the scores of each file out; one after the other, in constant memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertworks.datasets.published import dataset_of
from bertworks.errors import InputError, SettingsError
from bertworks.inference.predictor import Predictor
from bertworks.progress import Progress, ProgressCallback
from bertworks.tasks.contract import Task, TaskScores, examples_in
from bertworks.text.document import Counts


@dataclass(frozen=True, slots=True)
class LabelledFile:
    """A file to score a model on: what to call it, where it lies, and how its columns are named by their roles."""

    name: str
    path: Path
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FileScores:
    """The scores of a model on a file, and what was mended or left out while it was read."""

    name: str
    scores: TaskScores
    counts: Counts


def evaluate_files(
    predictor: Predictor, files: Iterable[LabelledFile], watch: ProgressCallback = lambda progress: None
) -> Iterator[FileScores]:
    """Yield the scores of one file after the other. A file is read once before, to know how much there is to do."""
    task = predictor.module.task
    for file in files:
        total = None
        if file.path.is_file():  # a pipe cannot be read twice
            total = _num_examples(task, file)
        if total == 0:
            raise InputError(f"{file.path} holds no example; check the file")
        counts = Counts()
        cases = task.read(file.path, file.columns, counts)
        pairs = report_progress(
            predictor.predict(cases, counts), Progress(f"evaluate {file.name}", 0, total, "examples"), watch
        )
        yield FileScores(file.name, task.score(pairs), counts)


def _num_examples(task: Task, file: LabelledFile) -> int:
    """Return how many examples a file has; a file of another task than the model's is mostly found here."""
    try:
        return sum(len(examples_in(case)) for case in task.read(file.path, file.columns))
    except InputError as error:
        raise InputError(f"{error} (the model is for '{task.name}', and the file is read as one for that)") from error


def report_progress(
    pairs: Iterable[tuple[Any, Any]], progress: Progress, watch: ProgressCallback
) -> Iterator[tuple[Any, Any]]:
    """Yield cases with their predictions, and tell how many examples are done."""
    done = progress.done
    for case, prediction in pairs:
        yield case, prediction
        done += len(examples_in(case))
        watch(Progress(progress.stage, done, progress.total, progress.unit))


def files_of_set(name: str, data: Path) -> list[LabelledFile]:
    """Return the labelled files of a published set but for train, those of them that are there: both dev sets of MNLI.

    The split is the name of each.
    """
    one = dataset_of(name)
    splits = [split for kind in ("dev", "test") for split in one.splits_of_kind(kind) if one.splits[split].is_labelled]
    if not splits:
        raise SettingsError(f"{one.name} has no labelled file but train; there is nothing to score")
    found = [split for split in splits if one.has_split(data, split)]
    if not found:
        one.find(data, splits[0])  # says where it should be
    return [LabelledFile(split, one.find(data, split), one.columns_of(split)) for split in found]
