"""Published benchmarks after training: a run and a data folder in, dev scores and submission files out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bertworks.commands.evaluate import dataset_files, evaluate_files, report_progress
from bertworks.datasets.published import dataset_of, write_submission
from bertworks.disk import read_json, write_json
from bertworks.errors import SettingsError
from bertworks.inference.finetuned import load_predictor
from bertworks.progress import Progress, ProgressCallback

ScoresBySplit = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class BenchmarkDataset:
    """A published dataset by its name, and the folder that holds it."""

    name: str
    data: Path

    def submission_splits(self) -> list[tuple[str, str]]:
        """Return (dataset, split) of each submission file; refuse, before training, if there is none.

        MNLI's submission includes the diagnostic set if its file exists.
        """
        dataset = dataset_of(self.name)
        if not dataset.submissions:
            raise SettingsError(f"{dataset.name} has no official submission format; omit --test")
        splits = [
            (member.name, split)
            for member in (dataset, *map(dataset_of, dataset.companions))
            for split in member.submissions
            if member.has_split(self.data, split)
        ]
        if not any(name == dataset.name for name, _ in splits):
            dataset.find(self.data, next(iter(dataset.submissions)))  # raises an error that names the missing file
        return splits

    def score_other_dev_sets(self, run: Path, watch: ProgressCallback) -> ScoresBySplit:
        """Score the model of a run on the dev sets that did not select it (MNLI mismatched); return all dev scores.

        The new scores are added to run.json.
        """
        first, *other_splits = dataset_of(self.name).splits_of_kind("dev") or ("dev",)
        files = (
            [file for file in dataset_files(self.name, self.data) if file.name in other_splits] if other_splits else []
        )
        if not files:
            return {}
        run_info = read_json(run / "run.json", "a finished run")
        scores = run_info["scores"]
        other_scores = {
            file_scores.name: dict(file_scores.scores.metrics)
            for file_scores in evaluate_files(load_predictor(run / "model"), files, watch)
        }
        write_json(run / "run.json", {**run_info, "scores": {**scores, **other_scores}})
        return {first: scores["dev"], **other_scores} if "dev" in scores else other_scores

    def write_submissions(self, model: Path, output: Path, watch: ProgressCallback) -> Iterator[tuple[Path, int]]:
        """Predict the test files with a fine-tuned model; yield each submission file and its number of predictions."""
        predictor = load_predictor(model)
        task = predictor.module.task
        for name, split in self.submission_splits():
            dataset = dataset_of(name)
            path, columns = dataset.find(self.data, split), dataset.columns_of(split)
            total = sum(1 for _ in task.read(path, columns))
            progress = Progress(f"predict {dataset.submissions[split]}", 0, total, "examples")
            pairs = report_progress(predictor.predict(task.read(path, columns)), progress, watch)
            predictions = ((example.id, task.submission_value(prediction)) for example, prediction in pairs)
            yield write_submission(name, predictions, output, split), total
