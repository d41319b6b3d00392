"""What a published set asks of a model besides its training: its further dev sets scored, its test files handed in.

A run on the set and its data folder in; scores, added to run.json, and the files that the benchmark wants out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertworks.commands.evaluate import evaluate_files, files_of_set, report_progress
from bertworks.datasets.published import dataset_of, write_submission
from bertworks.disk import read_json, write_json
from bertworks.errors import SettingsError
from bertworks.inference.finetuned import load_predictor
from bertworks.progress import Progress, ProgressCallback

ScoresBySplit = dict[str, dict[str, float]]

# What of a prediction is handed in.
_VALUES: dict[str, Callable[[Any], str | float]] = {
    "classify": lambda prediction: prediction.label,
    "regress": lambda prediction: prediction.value,
    "choose": lambda prediction: prediction.choice,
    "answer": lambda prediction: prediction.text,
}


@dataclass(frozen=True, slots=True)
class BenchmarkDataset:
    """A set by its name, and the folder that holds it."""

    name: str
    data: Path

    def submission_splits(self) -> list[tuple[str, str]]:
        """Return what can be handed in, as set and split; refuse, before hours are spent, if that is nothing.

        The diagnostic set goes with MNLI where its file is there.
        """
        one = dataset_of(self.name)
        if not one.submissions:
            raise SettingsError(f"{one.name} has no official submission for --test to write; leave it out")
        found = [
            (each.name, split)
            for each in (one, *map(dataset_of, one.companions))
            for split in each.submissions
            if each.has_split(self.data, split)
        ]
        if not any(name == one.name for name, _ in found):
            one.find(self.data, next(iter(one.submissions)))  # says where it should be
        return found

    def score_other_dev_sets(self, run: Path, watch: ProgressCallback) -> ScoresBySplit:
        """Score the model of a run on what dev sets there are besides the one that chose it; return all dev sets.

        The new scores are added to the run's own.
        """
        first, *others = dataset_of(self.name).splits_of_kind("dev") or ("dev",)
        files = [file for file in files_of_set(self.name, self.data) if file.name in others] if others else []
        if not files:
            return {}
        facts = read_json(run / "run.json", "a finished run")
        further = {
            one.name: dict(one.scores.metrics) for one in evaluate_files(load_predictor(run / "model"), files, watch)
        }
        write_json(run / "run.json", {**facts, "scores": {**facts["scores"], **further}})
        return {first: facts["scores"]["dev"], **further} if "dev" in facts["scores"] else further

    def write_submissions(self, model: Path, output: Path, watch: ProgressCallback) -> Iterator[tuple[Path, int]]:
        """Predict the test files with a sealed model; yield each file that was written, and how many predictions."""
        predictor = load_predictor(model)
        task = predictor.module.task
        for name, split in self.submission_splits():
            one = dataset_of(name)
            path, columns = one.find(self.data, split), one.columns_of(split)
            total = sum(1 for _ in task.read(path, columns))
            progress = Progress(f"predict {one.submissions[split]}", 0, total, "examples")
            pairs = report_progress(predictor.predict(task.read(path, columns)), progress, watch)
            value_of = _VALUES[one.task]
            predictions = ((case.id, value_of(prediction)) for case, prediction in pairs)
            yield write_submission(name, predictions, output, split), total
