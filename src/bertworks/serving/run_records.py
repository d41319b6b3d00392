"""Training runs: growing run folders in, their records and progress out.

metrics.jsonl and samples.jsonl have one record per line (see `bertworks.records`). Only the offsets of the lines are
held in memory.
"""

from __future__ import annotations

import math
import re
import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from bertworks.errors import InputError, SettingsError
from bertworks.reading import parse_json, parse_toml

METRICS, SAMPLES, RECIPE, RUN_INFO = "metrics.jsonl", "samples.jsonl", "recipe.toml", "run.json"
# Maximum records of a response: more than a chart has pixels.
MAX_RECORDS = 2_000
# A run that has written nothing for so long counts as stopped.
_STALE_SECONDS = 300.0
# How much of the end of samples.jsonl is read.
_SAMPLE_BYTES = 2**17
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@dataclass(slots=True, kw_only=True)
class Tail:
    """The offset, step and kind of each line of a growing file."""

    path: Path
    starts: array[int] = field(default_factory=lambda: array("q"))
    steps: array[int] = field(default_factory=lambda: array("q"))
    kinds: list[str] = field(default_factory=list)
    end: int = 0  # offset after the last complete line
    last: bytes = b""  # that line: a run that resumes from a checkpoint truncates its file

    def refresh(self) -> None:
        """Read the new lines; start over if the file was truncated."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.end - len(self.last))
                if file.read(len(self.last)) != self.last:
                    self.__init__(path=self.path)  # type: ignore[misc]
                    file.seek(0)
                for line in file:
                    if not line.endswith(b"\n"):
                        return  # it is not complete yet
                    self._add(line)
        except FileNotFoundError:
            self.__init__(path=self.path)  # type: ignore[misc]

    def _add(self, line: bytes) -> None:
        start, self.end, self.last = self.end, self.end + len(line), line
        record = _record(line)
        if record is not None:
            self.starts.append(start)
            self.steps.append(record["step"])
            self.kinds.append(record["kind"])

    def records(self, after: int, is_growing: bool) -> list[dict[str, Any]]:
        """Return the records of steps after `after`, subsampled if there are many; evaluations have priority.

        While the file grows, the last step is withheld: a client that continues after it would miss the evaluations
        that are still to be written for that step.
        """
        stop = self.steps[-1] if self.steps and is_growing else math.inf
        indices = [index for index, step in enumerate(self.steps) if after < step < stop]
        step_indices = [index for index in indices if self.kinds[index] == "step"]
        eval_indices = _subsample([index for index in indices if self.kinds[index] != "step"], MAX_RECORDS // 2)
        return self._read(sorted([*_subsample(step_indices, MAX_RECORDS - len(eval_indices)), *eval_indices]))

    def last_steps(self) -> list[dict[str, Any]]:
        """Return the records of the last two steps, or fewer if there are not so many."""
        reversed_indices = range(len(self.kinds) - 1, -1, -1)
        return self._read(sorted(islice((index for index in reversed_indices if self.kinds[index] == "step"), 2)))

    def _read(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = []
        if not indices:
            return records
        with self.path.open("rb") as file:
            for index in indices:
                file.seek(self.starts[index])
                record = _record(file.readline())
                if record is not None:  # the file may have been truncated meanwhile
                    records.append(record)
        return records


@dataclass(slots=True)
class RunMonitor:
    """A run folder and its records so far."""

    name: str
    folder: Path
    tail: Tail

    def summary(self) -> dict[str, Any]:
        """Return the entry of the run in the list of runs."""
        self.tail.refresh()
        run_info = _run_info(self.folder)
        return {
            "name": self.name,
            "kind": _kind(self.folder),
            "state": self._state(run_info),
            "step": self.tail.steps[-1] if self.tail.steps else 0,
            "started": run_info.get("started"),
            "finished": run_info.get("finished"),
        }

    def to_dict(self, after: int) -> dict[str, Any]:
        """Return the run with the records of steps after `after`."""
        summary = self.summary()
        recipe = _recipe(self.folder)
        records = self.tail.records(after, summary["state"] == "running")
        seconds_left = _estimate_seconds_left(recipe, self.tail) if summary["state"] == "running" else None
        return {
            **summary,
            "recipe": recipe,
            "records": records,
            "samples": _samples(self.folder / SAMPLES),
            "seconds_left": seconds_left,
        }

    def _state(self, run_info: Mapping[str, Any]) -> str:
        if "finished" in run_info:
            return "finished"
        try:
            modified = (self.folder / METRICS).stat().st_mtime
        except OSError:
            return "starting"
        return "running" if time.time() - modified < _STALE_SECONDS else "stopped"


class RunRegistry:
    """The runs of the given folders, by name."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = dict(folders)
        self._runs: dict[str, RunMonitor] = {}

    def all(self) -> list[RunMonitor]:
        """Return the current runs; a folder of runs may contain new ones."""
        folders: dict[str, Path] = {}
        for name, folder in self._folders.items():
            if is_run(folder):
                folders[name] = folder
                continue
            subfolders = sorted(path for path in _folders_in(folder) if is_run(path))
            folders |= {f"{name}.{path.name}": path for path in subfolders}
        self._runs = {
            name: self._runs.get(name) or RunMonitor(name, path, Tail(path=path / METRICS))
            for name, path in folders.items()
        }
        return list(self._runs.values())

    def get(self, name: str) -> RunMonitor | None:
        return next((run for run in self.all() if run.name == name), None)


def named_runs(arguments: Sequence[str]) -> dict[str, Path]:
    """Map names to run folders; an argument is NAME=FOLDER, or FOLDER under its own name."""
    folders: dict[str, Path] = {}
    for argument in arguments:
        name, equals, folder = argument.partition("=")
        if not equals or Path(argument).exists():
            name, folder = Path(argument).resolve().name, argument
        if not Path(folder).is_dir():
            raise InputError(f"--runs {argument}: {folder} is not a folder; give NAME=FOLDER of a run, or of runs")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise SettingsError(
                f"--runs {argument}: '{name}' cannot be a name; use letters, digits, dots, hyphens and underscores: "
                f"NAME=FOLDER"
            )
        if name in folders:
            raise SettingsError(f"--runs {argument}: two runs have the name '{name}'; give each its own: NAME=FOLDER")
        folders[name] = Path(folder)
    return folders


def is_run(folder: Path) -> bool:
    return (folder / METRICS).is_file() or (folder / RECIPE).is_file()


def _folders_in(folder: Path) -> Iterable[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_dir()]
    except OSError:
        return []


def _record(line: bytes) -> dict[str, Any] | None:
    """Parse a line; None if it is not a record."""
    try:
        value = parse_json(line)
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        return None
    step = value.get("step")
    return value if isinstance(step, int) and 0 <= step < 2**63 else None


def _subsample(values: Sequence[int], max_count: int) -> list[int]:
    """Return at most `max_count` evenly spaced values, including the first and the last."""
    if len(values) <= max_count:
        return list(values)
    return [values[index * (len(values) - 1) // (max_count - 1)] for index in range(max_count)]


def _samples(path: Path) -> list[dict[str, Any]]:
    """Return the samples of the last step that has any."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _SAMPLE_BYTES))
            lines = [line for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]
    except OSError:
        return []
    records = [record for record in map(_record, lines) if record is not None]
    return [record for record in records if record["step"] == records[-1]["step"]]


def _recipe(folder: Path) -> dict[str, Any]:
    try:
        return parse_toml((folder / RECIPE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _run_info(folder: Path) -> dict[str, Any]:
    try:
        value = parse_json((folder / RUN_INFO).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _kind(folder: Path) -> str:
    """Return the kind of a run; only the recipe of a fine-tuning run has a task."""
    return "finetune" if "task" in _recipe(folder) else "pretrain"


def _estimate_seconds_left(recipe: Mapping[str, Any], tail: Tail) -> float | None:
    """Estimate the time left; None if the recipe or the last records lack what that needs."""
    try:
        return _seconds_left(recipe, tail.last_steps())
    except (AttributeError, KeyError, TypeError, ValueError, ArithmeticError):
        return None


def _seconds_left(recipe: Mapping[str, Any], last: Sequence[Mapping[str, Any]]) -> float | None:
    """Estimate the time left from the time budget, or from the number of steps left and the mean time of a step.

    `last` are the records of the last two steps.
    """
    if not last:
        return None
    seconds, step = float(last[-1]["seconds"]), int(last[-1]["step"])
    budget = re.findall(r"(\d+(?:\.\d+)?)([smhd])", str(recipe.get("budget", "")))
    if budget:
        return max(0.0, sum(float(number) * _UNITS[unit] for number, unit in budget) - seconds)
    total = sum(int(phase.get("steps", 0)) for phase in recipe.get("phases", []))
    total = total or _num_steps(recipe, last)
    return seconds / step * (total - step) if step and total >= step else None


def _num_steps(recipe: Mapping[str, Any], last: Sequence[Mapping[str, Any]]) -> int:
    """Infer the total number of steps of a fine-tuning run from its learning rate; 0 if that is not possible.

    The linear schedule warms up over `warmup_ratio` of the steps and decays to zero over the rest.
    """
    warmup_ratio, peak = float(recipe.get("warmup_ratio", 0.0)), float(recipe.get("learning_rate", 0.0))
    if recipe.get("schedule") != "linear" or len(last) < 2 or not 0 < last[-1]["learning_rate"] < peak:
        return 0
    ratio = last[-1]["learning_rate"] / peak
    is_warmup = last[-1]["learning_rate"] > last[-2]["learning_rate"]
    return round(last[-1]["step"] / (warmup_ratio * ratio if is_warmup else 1 - (1 - warmup_ratio) * ratio))
