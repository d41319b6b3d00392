"""Run folders in, what they have recorded so far out: read as they grow, from the files alone.

metrics.jsonl and samples.jsonl have one record a line; `docs/pretraining.md` tells their fields. Of each file only
where its lines begin is kept in memory.
"""

from __future__ import annotations

import json
import math
import re
import time
import tomllib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from bertworks.errors import InputError, SettingsError

METRICS, SAMPLES, RECIPE, RUN_INFO = "metrics.jsonl", "samples.jsonl", "recipe.toml", "run.json"
# The most records of one answer: more than a screen has points.
MAX_RECORDS = 2_000
# A run that has written nothing for so long is thought to have stopped.
_STALE_SECONDS = 300.0
# How much of the end of samples.jsonl is looked at.
_SAMPLE_BYTES = 2**17
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@dataclass(slots=True)
class Tail:
    """Where the lines of a growing file begin, and the step of each."""

    path: Path
    starts: array[int] = field(default_factory=lambda: array("q"))
    steps: array[int] = field(default_factory=lambda: array("q"))
    kinds: list[str] = field(default_factory=list)
    end: int = 0  # of the last whole line that was seen
    last: bytes = b""  # that line: a run that goes on after a crash cuts its file back

    def refresh(self) -> None:
        """See what was written since; begin anew if the file was cut back."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.end - len(self.last))
                if file.read(len(self.last)) != self.last:
                    self.__init__(self.path)  # type: ignore[misc]
                    file.seek(0)
                for line in file:
                    if not line.endswith(b"\n"):
                        return  # it is being written just now
                    self._add(line)
        except FileNotFoundError:
            self.__init__(self.path)  # type: ignore[misc]

    def _add(self, line: bytes) -> None:
        start, self.end, self.last = self.end, self.end + len(line), line
        record = _record(line)
        if record is not None:
            self.starts.append(start)
            self.steps.append(record["step"])
            self.kinds.append(record["kind"])

    def records(self, after: int, is_growing: bool) -> list[dict[str, Any]]:
        """Return the records of later steps, thinned if there are many; measurements go before steps.

        While the file grows, the last step is kept back: who asks for what came after it would miss the measurements
        that are still to be written for it.
        """
        stop = self.steps[-1] if self.steps and is_growing else math.inf
        numbers = [number for number, step in enumerate(self.steps) if after < step < stop]
        steps = [number for number in numbers if self.kinds[number] == "step"]
        others = _thin([number for number in numbers if self.kinds[number] != "step"], MAX_RECORDS // 2)
        return self._read(sorted([*_thin(steps, MAX_RECORDS - len(others)), *others]))

    def last_steps(self) -> list[dict[str, Any]]:
        """Return the last two steps, as far as there are so many."""
        backwards = range(len(self.kinds) - 1, -1, -1)
        return self._read(sorted(islice((number for number in backwards if self.kinds[number] == "step"), 2)))

    def _read(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        if not indices:
            return found
        with self.path.open("rb") as file:
            for number in indices:
                file.seek(self.starts[number])
                record = _record(file.readline())
                if record is not None:  # it may have been cut back meanwhile
                    found.append(record)
        return found


@dataclass(slots=True)
class RunMonitor:
    """A run folder that is followed."""

    name: str
    folder: Path
    tail: Tail

    def summary(self) -> dict[str, Any]:
        """Return what a list of runs shows."""
        self.tail.refresh()
        facts = _run_info(self.folder)
        return {
            "name": self.name,
            "kind": _kind(self.folder),
            "state": self._state(facts),
            "step": self.tail.steps[-1] if self.tail.steps else 0,
            "started": facts.get("started"),
            "finished": facts.get("finished"),
        }

    def to_dict(self, after: int) -> dict[str, Any]:
        """Return all that a page shows, with the records of steps after `after`."""
        summary = self.summary()
        recipe = _recipe(self.folder)
        records = self.tail.records(after, summary["state"] == "running")
        left = _seconds_left(recipe, self.tail.last_steps()) if summary["state"] == "running" else None
        return {
            **summary,
            "recipe": recipe,
            "records": records,
            "samples": _samples(self.folder / SAMPLES),
            "left_seconds": left,
        }

    def _state(self, run_info: Mapping[str, Any]) -> str:
        if "finished" in run_info:
            return "finished"
        try:
            written = (self.folder / METRICS).stat().st_mtime
        except OSError:
            return "starting"
        return "running" if time.time() - written < _STALE_SECONDS else "stopped"


class RunRegistry:
    """The runs that are followed, by name."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = dict(folders)
        self._runs: dict[str, RunMonitor] = {}

    def all(self) -> list[RunMonitor]:
        """Return the runs that are there now: folders of runs may have got more of them."""
        found: dict[str, Path] = {}
        for name, folder in self._folders.items():
            if is_run(folder):
                found[name] = folder
                continue
            inside = sorted(path for path in _folders_in(folder) if is_run(path))
            found |= {f"{name}.{path.name}": path for path in inside}
        self._runs = {
            name: self._runs.get(name) or RunMonitor(name, path, Tail(path / METRICS)) for name, path in found.items()
        }
        return list(self._runs.values())

    def get(self, name: str) -> RunMonitor | None:
        return next((run for run in self.all() if run.name == name), None)


def named_runs(arguments: Sequence[str]) -> dict[str, Path]:
    """Return the folder of each NAME=FOLDER; of a plain FOLDER, under its own name."""
    found: dict[str, Path] = {}
    for argument in arguments:
        name, told, folder = argument.partition("=")
        if not told or Path(argument).exists():
            name, folder = Path(argument).resolve().name, argument
        if not Path(folder).is_dir():
            raise InputError(f"--runs {argument}: there is no folder {folder}; give NAME=FOLDER of a run, or of runs")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or name in found:
            raise SettingsError(f"--runs {argument}: '{name}' is no name, or a second one; give each its own: NAME=…")
        found[name] = Path(folder)
    return found


def is_run(folder: Path) -> bool:
    return (folder / METRICS).is_file() or (folder / RECIPE).is_file()


def _folders_in(folder: Path) -> Iterable[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_dir()]
    except OSError:
        return []


def _record(line: bytes) -> dict[str, Any] | None:
    """Return a line as a record; None for what is none."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    is_record = isinstance(found, dict) and isinstance(found.get("step"), int) and isinstance(found.get("kind"), str)
    return found if is_record else None


def _thin(numbers: Sequence[int], max_count: int) -> list[int]:
    """Return at most so many, evenly spread, the first and the last among them."""
    if len(numbers) <= max_count:
        return list(numbers)
    return [numbers[place * (len(numbers) - 1) // (max_count - 1)] for place in range(max_count)]


def _samples(path: Path) -> list[dict[str, Any]]:
    """Return the samples of the last step that has some."""
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
        return tomllib.loads((folder / RECIPE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _run_info(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / RUN_INFO).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _kind(folder: Path) -> str:
    """A fine-tuning run states its task first of all."""
    return "finetune" if "task" in _recipe(folder) else "pretrain"


def _seconds_left(recipe: Mapping[str, Any], last: Sequence[Mapping[str, Any]]) -> float | None:
    """Return how long a run still takes: by its clock, or if the steps that are left take as long as those before.

    `last` are the last two steps.
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
    """Return how many steps a fine-tuning run has, which its rate tells: it rises to the peak over a share of them, and
    falls to zero over the others; 0 where that cannot be told."""
    share, peak = float(recipe.get("warmup_rate", 0.0)), float(recipe.get("rate", 0.0))
    if recipe.get("schedule") != "linear" or len(last) < 2 or not 0 < last[-1]["rate"] < peak:
        return 0
    height = last[-1]["rate"] / peak
    rises = last[-1]["rate"] > last[-2]["rate"]
    return round(last[-1]["step"] / (share * height if rises else 1 - (1 - share) * height))
