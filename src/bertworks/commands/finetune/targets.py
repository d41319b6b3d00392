"""What to fine-tune on: a task and files, or the name of a published set and a data folder, in; a Target out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertworks.datasets.published import DATASETS, PublishedDataset, dataset_of
from bertworks.errors import InputError, SettingsError
from bertworks.tasks.registry import TASKS


@dataclass(frozen=True, slots=True)
class TaskDataset:
    """A task with its files by split; columns by split ("" for all); and settings of the task (labels, metrics)."""

    task: str
    files: Mapping[str, Path]
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def file(self, split: str) -> Path | None:
        return self.files.get(split)


def resolve_dataset(
    name: str, files: Mapping[str, Path | None], data: Path | None, columns: Mapping[str, str]
) -> TaskDataset:
    """Return the target of a task with files of one's own, or of a published set in a data folder.

    Files of one's own replace those of a set, and columns that a person names go before all others.
    """
    given = {split: path for split, path in files.items() if path is not None}
    for path in given.values():
        if not path.is_file():
            raise InputError(f"{path} is not there; name a labelled file")
    if name in TASKS:
        return TaskDataset(name, given, {"": dict(columns)})
    if name.lower() not in {known.lower() for known in DATASETS} and "/" not in name and data is None:
        known = f"{', '.join(TASKS)}; published sets: {', '.join(DATASETS)}"
        raise SettingsError(f"there is no task or set '{name}'; tasks are {known}")
    one = dataset_of(name)
    if data is None and "train" not in given:
        raise SettingsError(f"{one.name} needs its files: give the folder that holds them with --data")
    if data is not None:
        given = {**_files(one, data), **given}
    return TaskDataset(one.task, given, _columns(one, columns), _settings(one))


def _files(dataset: PublishedDataset, data: Path) -> dict[str, Path]:
    """Return the files of a set that are there; the first of several dev sets is the one that chooses the model.

    Those of a built-in set are written first.
    """
    if dataset.write is not None and not dataset.has_split(data, "train"):
        dataset.write(data)
    found = {}
    for kind in ("train", "dev", "test"):
        for split in dataset.splits_of_kind(kind)[:1]:
            try:
                found[kind] = dataset.find(data, split)
            except InputError:
                if kind == "train":
                    raise
    return found


def _columns(dataset: PublishedDataset, columns: Mapping[str, str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {"": {**dataset.roles, **columns}}
    for kind in ("train", "dev", "test"):
        for split in dataset.splits_of_kind(kind)[:1]:
            own = found[kind] = {}
            told = dataset.split(split)
            if told.columns:
                own["header"] = ",".join(told.columns)
            if dataset.has_broken_lines:
                own["broken"] = "yes"
            if not told.is_labelled:
                own["label"] = ""
    return found


def _settings(dataset: PublishedDataset) -> dict[str, Any]:
    settings: dict[str, Any] = {"metrics": dataset.metrics, "set": dataset.name}
    if dataset.labels:
        settings["labels"] = dataset.labels
    return settings
