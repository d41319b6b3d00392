"""Evaluate a fine-tuned model: labelled files in, the scores of each file out, in constant memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertworks.datasets.published import dataset_of
from bertworks.datasets.recorded_columns import columns_for_file
from bertworks.errors import InputError, SettingsError
from bertworks.inference.predictor import Predictor
from bertworks.progress import Progress, ProgressCallback
from bertworks.reading import convert_paths
from bertworks.tasks.contract import Task, TaskScores, examples_in
from bertworks.tasks.memory import is_path, locate_rows, write_rows
from bertworks.text.document import Counts
from bertworks.vocabulary.text_coverage import UNKNOWN_TOKENS, CoverageWarning


@dataclass(frozen=True, slots=True)
class LabelledFile:
    """A file to score a model on; `columns` maps roles (text, label) to column names."""

    name: str
    path: Path
    columns: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        convert_paths(self, "path")


@dataclass(frozen=True, slots=True)
class FileScores:
    """The scores of a model on a file; `counts` are the repaired and skipped records, and unknown tokens.

    `warnings` say that the vocabulary of the model hardly reads the file.
    """

    name: str
    scores: TaskScores
    counts: Counts
    warnings: Sequence[CoverageWarning] = ()


def evaluate_files(
    predictor: Predictor, files: Iterable[LabelledFile], watch: ProgressCallback = lambda progress: None
) -> Iterator[FileScores]:
    """Yield the scores of each file. A regular file is read twice: once to count its examples for the progress.

    Columns that are not named are those that the model was trained with, if the file has them.
    """
    task = predictor.module.task
    for file in files:
        total = None
        if file.path.is_file():  # not a pipe
            file = replace(file, columns=columns_for_file(file.path, predictor.columns, file.columns))
            total = _num_examples(task, file)
        if total == 0:
            raise InputError(f"{file.path} has no examples; check the file")
        counts, coverage = Counts(), predictor.new_coverage()
        predictions = predictor.predict(task.read(file.path, file.columns, counts), counts, coverage)
        pairs = report_progress(predictions, Progress(f"evaluate {file.name}", 0, total, "examples"), watch)
        scores = task.score(pairs)
        if coverage.num_unknown:
            counts[UNKNOWN_TOKENS] += coverage.num_unknown
        yield FileScores(file.name, scores, counts, coverage.warnings())


def evaluate_data(predictor: Predictor, data: Any, columns: Mapping[str, str]) -> FileScores:
    """Return the scores of labelled data: a file, or what `tasks.memory` takes in memory."""
    if is_path(data):
        (result,) = evaluate_files(predictor, [LabelledFile(str(data), Path(data), columns)])
        return result
    with tempfile.TemporaryDirectory() as folder, locate_rows():
        path = write_rows(data, type(predictor.module.task), "data", Path(folder))
        (result,) = evaluate_files(predictor, [LabelledFile("data", path, columns)])
        return result


def _num_examples(task: Task, file: LabelledFile) -> int:
    """Return the number of examples of a file; raise an error that names the task if it cannot be read."""
    try:
        return sum(len(examples_in(example)) for example in task.read(file.path, file.columns))
    except InputError as error:
        raise InputError(f"{error} (the file is read as data for the model's task, '{task.name}')") from error


def report_progress(
    pairs: Iterable[tuple[Any, Any]], progress: Progress, watch: ProgressCallback
) -> Iterator[tuple[Any, Any]]:
    """Yield (example, prediction) pairs and report the number of examples done."""
    num_done = progress.done
    for example, prediction in pairs:
        yield example, prediction
        num_done += len(examples_in(example))
        watch(Progress(progress.stage, num_done, progress.total, progress.unit))


def dataset_files(name: str, data: Path) -> list[LabelledFile]:
    """Return the existing labelled dev and test files of a published dataset, named by split: both dev sets of MNLI."""
    dataset = dataset_of(name)
    labelled = [
        split for kind in ("dev", "test") for split in dataset.splits_of_kind(kind) if dataset.splits[split].is_labelled
    ]
    if not labelled:
        raise SettingsError(f"{dataset.name} has no labelled split besides train; there is nothing to evaluate on")
    splits = [split for split in labelled if dataset.has_split(data, split)]
    if not splits:
        dataset.find(data, labelled[0])  # raises an error that names the missing file
    return [LabelledFile(split, dataset.find(data, split), dataset.columns_of(split)) for split in splits]
