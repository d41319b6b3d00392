"""The records of a run: steps, held-out scores and fill-mask samples in, JSON lines out.

One object per line, appended and never changed; `kind` distinguishes the records.

    metrics.jsonl   kind "step":      step, phase, losses {name: mean}, learning_rate, seconds, num_tokens, grad_norm
                    kind "held_out":  step, phase, losses {name: mean}, perplexity, accuracy, pair_accuracy or null
                    kind "score":     step, split, metrics {name: value}
    samples.jsonl   kind "sample":    step, text, predictions [for each mask [[token, probability], …]]

A number that is not finite is written as one of the strings "nan", "inf" and "-inf", which JSON has no number for. A
line reaches the operating system whole before `add` returns, so a killed process loses at most one line.
"""

from __future__ import annotations

import json
import math
import os
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from bertworks.disk import explain_os_error
from bertworks.errors import FolderError
from bertworks.reading import parse_json, unreadable_reason

_STEP_COLUMNS = ("step", "learning_rate", "seconds", "num_tokens", "grad_norm")
METRICS, SAMPLES = "metrics.jsonl", "samples.jsonl"
MASK_TOKEN = "[MASK]"  # in the text of a sample  # noqa: S105
# What reading a value of another type than the expected one raises.
_BAD_VALUES = (ValueError, KeyError, TypeError, AttributeError, OverflowError)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A logged training step. `seconds` and `num_tokens` are totals of the run so far.

    The first of `losses` is the one over tokens, in nats; that over sentence pairs, if there is one, follows.
    """

    step: int
    phase: str
    losses: dict[str, float]
    learning_rate: float
    seconds: float
    num_tokens: int
    grad_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutRecord:
    """Losses and accuracies (0 to 1) on the held-out split after `step` steps."""

    step: int
    phase: str
    losses: dict[str, float]
    perplexity: float
    accuracy: float
    pair_accuracy: float | None = None

    @property
    def loss(self) -> float:
        """The loss that model selection uses: that of the first part."""
        return next(iter(self.losses.values()))


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """A text with masks, and for each mask the predicted tokens with their probabilities, most probable first."""

    step: int
    text: str
    predictions: tuple[tuple[tuple[str, float], ...], ...]


@dataclass(frozen=True, slots=True)
class ScoreRecord:
    """The metrics of a fine-tuned model on a split after a step."""

    step: int
    split: str
    metrics: dict[str, float]


RunRecord = StepRecord | HeldOutRecord | SampleRecord | ScoreRecord


class RecordMirror(Protocol):
    """Gets every record as well, such as the writer of TensorBoard events."""

    def add(self, record: RunRecord) -> None: ...

    def close(self) -> None: ...


class Records:
    """The append-only records of one run. Only one process writes them.

    Add the records of a step, then `sync`, then save the checkpoint of that step: the records are then never behind a
    checkpoint, and truncating them to the checkpoint leaves neither gaps nor duplicates.
    """

    def __init__(self, metrics: BinaryIO, samples: BinaryIO, num_truncated: int) -> None:
        self._metrics = metrics
        self._samples = samples
        self._mirror: RecordMirror | None = None
        self.num_truncated = num_truncated  # lines of steps after the checkpoint, which are run again

    @classmethod
    def open(cls, folder: Path, last_step: int | None) -> Records:
        """Open the records of a run that resumes from the checkpoint of `last_step`; None: it starts from scratch.

        All lines of later steps and an incomplete last line are removed; a damaged line before them is an error.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            num_truncated = sum(_truncate(folder / name, last_step) for name in (METRICS, SAMPLES))
            return cls((folder / METRICS).open("ab"), (folder / SAMPLES).open("ab"), num_truncated)
        except OSError as error:
            raise explain_os_error(error, folder) from error

    def mirror(self, mirror: RecordMirror) -> None:
        """Pass every record from now on to `mirror`, too."""
        self._mirror = mirror

    def add(self, record: RunRecord) -> None:
        file = self._samples if isinstance(record, SampleRecord) else self._metrics
        try:
            file.write(_encode_line(record))
            file.flush()
        except OSError as error:
            raise explain_os_error(error, Path(file.name)) from error
        if self._mirror is not None:
            self._mirror.add(record)

    def sync(self) -> None:
        """Flush all lines to the disk, so that they survive a power failure."""
        for file in (self._metrics, self._samples):
            try:
                os.fsync(file.fileno())
            except OSError as error:
                raise explain_os_error(error, Path(file.name)) from error

    def close(self) -> None:
        if self._mirror is not None:
            self._mirror.close()
        try:
            with self._metrics, self._samples:  # closes both
                pass
        except OSError as error:  # what a full disk did not take is written again
            raise explain_os_error(error, Path(self._metrics.name)) from error

    def __enter__(self) -> Records:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def read_records(folder: Path) -> Iterator[RunRecord]:
    """Yield the steps and scores of a run in order, then its samples; a missing file yields nothing.

    An incomplete last line is skipped: the run was killed there, or is writing it right now.
    """
    for name in (METRICS, SAMPLES):
        yield from _read_file(folder / name)


def _read_file(path: Path) -> Iterator[RunRecord]:
    if not path.exists():
        return
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    yield _parse_record(line, path, number)
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {unreadable_reason(error)}") from error


def _column() -> array[float]:
    return array("d")


@dataclass(slots=True, kw_only=True)
class History:
    """The records of a run, steps as columns."""

    columns: dict[str, array[float]] = field(default_factory=lambda: defaultdict(_column))
    losses: dict[str, tuple[array[float], array[float]]] = field(  # steps, values
        default_factory=lambda: defaultdict(lambda: (_column(), _column()))
    )
    phases: list[tuple[int, str]] = field(default_factory=list)  # (first recorded step, name)
    held_out: list[HeldOutRecord] = field(default_factory=list)
    samples: list[SampleRecord] = field(default_factory=list)
    scores: list[ScoreRecord] = field(default_factory=list)
    read_errors: list[str] = field(default_factory=list)  # one message per file that could not be read to its end

    @classmethod
    def read(cls, run: Path) -> History:
        history = cls()
        for path in (run / METRICS, run / SAMPLES):
            try:
                for record in _read_file(path):
                    history._add(record)
            except FolderError as error:
                history.read_errors.append(str(error))
        return history

    def _add(self, record: RunRecord) -> None:
        if isinstance(record, SampleRecord):
            self.samples.append(record)
        elif isinstance(record, HeldOutRecord):
            self.held_out.append(record)
        elif isinstance(record, ScoreRecord):
            self.scores.append(record)
        else:
            for name in _STEP_COLUMNS:
                self.columns[name].append(getattr(record, name))
            for name, value in record.losses.items():
                steps, values = self.losses[name]
                steps.append(record.step)
                values.append(value)
            if not self.phases or self.phases[-1][1] != record.phase:
                self.phases.append((record.step, record.phase))

    def column(self, name: str) -> npt.NDArray[np.float64]:
        return np.array(self.columns.get(name, ()), dtype=np.float64)

    def last(self, name: str) -> float:
        return self.columns[name][-1] if name in self.columns else 0.0

    @property
    def token_loss(self) -> str:
        """The name of the loss over tokens: the first that was recorded."""
        names = [*self.losses, *(name for record in self.held_out for name in record.losses)]
        return names[0] if names else ""


def _encode_line(record: RunRecord) -> bytes:
    row = {"kind": _KINDS[type(record)]} | {
        item.name: _to_json_value(getattr(record, item.name)) for item in fields(record)
    }
    return (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _to_json_value(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, dict):
        return {key: _to_json_value(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_to_json_value(item) for item in value]
    return value


def _parse_record(line: bytes, path: Path, number: int) -> RunRecord:
    try:
        row = parse_json(line)
        return _READERS[row["kind"]](row)
    except _BAD_VALUES as error:
        reason = f"{type(error).__name__}: {error}"
        raise FolderError(f"{path}, line {number} is not a record of a run ({reason}); delete that line") from error


def _parse_step(row: Mapping[str, Any]) -> StepRecord:
    return StepRecord(
        step=_parse_count(row, "step"),
        phase=str(row["phase"]),
        losses=_parse_losses(row),
        learning_rate=float(row["learning_rate"]),
        seconds=float(row["seconds"]),
        num_tokens=_parse_count(row, "num_tokens"),
        grad_norm=float(row["grad_norm"]),
    )


def _parse_held_out(row: Mapping[str, Any]) -> HeldOutRecord:
    pair_accuracy = row["pair_accuracy"]
    return HeldOutRecord(
        step=_parse_count(row, "step"),
        phase=str(row["phase"]),
        losses=_parse_losses(row),
        perplexity=float(row["perplexity"]),
        accuracy=float(row["accuracy"]),
        pair_accuracy=None if pair_accuracy is None else float(pair_accuracy),
    )


def _parse_sample(row: Mapping[str, Any]) -> SampleRecord:
    predictions = tuple(tuple((str(token), float(prob)) for token, prob in mask) for mask in row["predictions"])
    return SampleRecord(_parse_count(row, "step"), str(row["text"]), predictions)


def _parse_count(row: Mapping[str, Any], name: str) -> int:
    count = int(row[name])
    if not 0 <= count < 2**63:
        raise ValueError(f"{name} is out of range")
    return count


def _parse_losses(row: Mapping[str, Any]) -> dict[str, float]:
    # float() also parses "nan", "inf" and "-inf"
    return {str(name): float(value) for name, value in dict(row["losses"]).items()}


def _parse_score(row: Mapping[str, Any]) -> ScoreRecord:
    return ScoreRecord(
        _parse_count(row, "step"), str(row["split"]), {str(k): float(v) for k, v in row["metrics"].items()}
    )


_KINDS: dict[type[RunRecord], str] = {
    StepRecord: "step",
    HeldOutRecord: "held_out",
    SampleRecord: "sample",
    ScoreRecord: "score",
}
_READERS: dict[str, Callable[[Mapping[str, Any]], RunRecord]] = {
    "step": _parse_step,
    "held_out": _parse_held_out,
    "sample": _parse_sample,
    "score": _parse_score,
}


def _truncate(path: Path, last_step: int | None) -> int:
    """Remove the lines after those of `last_step`; return how many were removed. The others are checked."""
    if not path.exists():
        return 0
    with path.open("rb+") as file:
        end = 0 if last_step is None else _end_of_step(path, file, last_step)
        file.seek(end)
        num_removed = sum(1 for _ in file)
        file.truncate(end)
        os.fsync(file.fileno())
    return num_removed


def _end_of_step(path: Path, file: BinaryIO, last_step: int) -> int:
    """Return the offset after the last record up to `last_step`; raise a FolderError if a line before is damaged.

    A power failure can leave zeros where the last lines were, so damage after all those records is no error.
    """
    offset = end = newest_step = newest_train_step = 0
    damage: FolderError | None = None
    for number, line in enumerate(file, start=1):
        offset += len(line)
        try:
            record = _parse_record(line, path, number)
        except FolderError as error:
            damage = damage or error
            continue
        if record.step <= last_step and line.endswith(b"\n"):
            if damage is not None:
                raise damage
            is_repeated = isinstance(record, StepRecord) and record.step == newest_train_step
            if record.step < newest_step or is_repeated:
                raise FolderError(
                    f"{path}, line {number} is of step {record.step}, after one of step {newest_step}: two runs wrote "
                    f"the file; delete the lines of one of them, or choose another --output"
                )
            end = offset
        newest_step = max(newest_step, record.step)
        newest_train_step = record.step if isinstance(record, StepRecord) else newest_train_step
    return end
