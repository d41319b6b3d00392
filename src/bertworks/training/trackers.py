"""Experiment trackers: the events of a run in, a run of Weights & Biases or MLflow out.

Both are optional, and work offline: WANDB_MODE=offline writes into the run folder; MLflow writes there unless
MLFLOW_TRACKING_URI names a server.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bertworks.errors import MissingDependencyError, SettingsError
from bertworks.parallel.process_group import is_main_process
from bertworks.records import RecordMirror, RunRecord
from bertworks.settings import recipe_table
from bertworks.training.events import scalars_of

_PROJECT = "bertworks"
_MAX_PARAMETER = 500  # characters of a parameter in MLflow
# By the name of a tracker: its module, its package, and what it is called.
_PACKAGES = {"wandb": ("wandb", "wandb", "Weights & Biases"), "mlflow": ("mlflow", "mlflow-skinny", "MLflow")}

EventT = TypeVar("EventT")


class WandbWriter:
    """Writes the records of a run to Weights & Biases; the name of the run is that of its folder."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        import wandb

        self._run = wandb.init(project=_PROJECT, name=folder.name, dir=str(folder), config=dict(settings))
        self._last_step = 0

    def add(self, record: RunRecord) -> None:
        """Write a record; scores of an earlier step, those of the best model, go into the summary."""
        scalars = scalars_of(record)
        if not scalars:
            return
        if record.step < self._last_step:
            self._run.summary.update(scalars)
            return
        self._last_step = record.step
        self._run.log(scalars, step=record.step)

    def close(self) -> None:
        self._run.finish()


class MlflowWriter:
    """Writes the records of a run to MLflow: into the subfolder `mlruns`, or to the server of the environment."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient

        uri = os.environ.get("MLFLOW_TRACKING_URI") or (folder / "mlruns").resolve().as_uri()
        if uri.startswith("file:"):  # MLflow prefers a database, which needs its larger package
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._client = MlflowClient(tracking_uri=uri)
        experiment = self._client.get_experiment_by_name(_PROJECT)
        experiment_id = self._client.create_experiment(_PROJECT) if experiment is None else experiment.experiment_id
        self._run_id = self._client.create_run(experiment_id, run_name=folder.name).info.run_id
        for name, value in flatten(settings):
            self._client.log_param(self._run_id, name, str(value)[:_MAX_PARAMETER])

    def add(self, record: RunRecord) -> None:
        """Write a record."""
        for name, value in scalars_of(record).items():
            self._client.log_metric(self._run_id, name, value, step=record.step)

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


TRACKERS: dict[str, Callable[[Path, Mapping[str, Any]], RecordMirror]] = {"wandb": WandbWriter, "mlflow": MlflowWriter}


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that do not exist or are not installed: before a run, not at its first record."""
    for name in names:
        if name not in TRACKERS:
            raise SettingsError(f"there is no tracker '{name}'; choose one of: {', '.join(TRACKERS)}")
        module, package, title = _PACKAGES[name]
        if importlib.util.find_spec(module) is None:
            raise MissingDependencyError(package, name, f"tracking a run with {title}")


def track_events(events: Iterator[EventT], names: Sequence[str], folder: Path) -> Iterator[EventT]:
    """Yield the events of pretraining or fine-tuning, and pass their records to these trackers."""
    with track_records(names if is_main_process() else (), folder) as add:
        for event in events:
            record = _record_of(event)
            if record is not None:
                add(record)
            yield event


def _record_of(event: Any) -> RunRecord | None:
    """Return what trackers get of an event; the steps of an adaptation, which count from 1 themselves, are left out."""
    if event.step is not None:
        phase = getattr(event, "phase", "pretrain")
        return None if phase == "adapt" else event.step.to_record(phase)
    record: RunRecord | None = getattr(event, "score", None) or getattr(event, "held_out", None)
    return record


@contextlib.contextmanager
def track_records(names: Sequence[str], folder: Path) -> Iterator[Callable[[RunRecord], None]]:
    """Yield a function that passes records to these trackers.

    They start with the first record, when the recipe of the run is in its folder.
    """
    check_trackers(names)
    writers: list[RecordMirror] = []

    def add(record: RunRecord) -> None:
        if len(writers) < len(names):
            settings = recipe_table(folder / "recipe.toml")
            writers.extend(TRACKERS[name](folder, settings) for name in names)
        for writer in writers:
            writer.add(record)

    try:
        yield add
    finally:
        for writer in writers:
            writer.close()


def flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings with dotted keys: optimizer.beta2."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
