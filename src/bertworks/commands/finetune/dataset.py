"""Resolve the data of a run: a task with files, or a published dataset with its folder, in; a TaskDataset out."""

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
    """A task with its files by split, columns by split ("" for all), and settings of the task (labels, metrics)."""

    task: str
    files: Mapping[str, Path]
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def file(self, split: str) -> Path | None:
        return self.files.get(split)


def resolve_dataset(
    name: str, files: Mapping[str, Path | None], data: Path | None, columns: Mapping[str, str]
) -> TaskDataset:
    """Return the dataset of a task with the user's own files, or of a published dataset in the folder `data`.

    The user's files and column names take precedence over those of a published dataset.
    """
    user_files = {split: path for split, path in files.items() if path is not None}
    for path in user_files.values():
        if not path.is_file():
            raise InputError(f"{path} does not exist; name a labelled file")
    if name in TASKS:
        return TaskDataset(name, user_files, {"": dict(columns)})
    if name.lower() not in {dataset_name.lower() for dataset_name in DATASETS} and "/" not in name and data is None:
        raise SettingsError(
            f"there is no task or dataset '{name}'; tasks: {', '.join(TASKS)}; datasets: {', '.join(DATASETS)}"
        )
    dataset = dataset_of(name)
    if data is None and "train" not in user_files:
        raise SettingsError(f"{dataset.name} needs its files; name the folder that holds them with --data")
    if data is not None:
        user_files = {**_files(dataset, data), **user_files}
    return TaskDataset(dataset.task, user_files, _columns(dataset, columns), _settings(dataset))


def _files(dataset: PublishedDataset, data: Path) -> dict[str, Path]:
    """Return the existing files of a dataset; the first of several dev sets selects the model.

    The files of a built-in dataset are written first.
    """
    if dataset.write is not None and not dataset.has_split(data, "train"):
        dataset.write(data)
    files = {}
    for kind in ("train", "dev", "test"):
        for split in dataset.splits_of_kind(kind)[:1]:
            try:
                files[kind] = dataset.find(data, split)
            except InputError:
                if kind == "train":
                    raise
    return files


def _columns(dataset: PublishedDataset, columns: Mapping[str, str]) -> dict[str, dict[str, str]]:
    by_split: dict[str, dict[str, str]] = {"": {**dataset.roles, **columns}}
    for kind in ("train", "dev", "test"):
        for name in dataset.splits_of_kind(kind)[:1]:
            split_columns = by_split[kind] = {}
            split = dataset.split(name)
            if split.columns:
                split_columns["header"] = ",".join(split.columns)
            if dataset.has_broken_lines:
                split_columns["broken"] = "yes"
            if not split.is_labelled:
                split_columns["label"] = ""
    return by_split


def _settings(dataset: PublishedDataset) -> dict[str, Any]:
    settings: dict[str, Any] = {"metrics": dataset.metrics, "set": dataset.name}
    if dataset.labels:
        settings["labels"] = dataset.labels
    return settings
