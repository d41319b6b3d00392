"""The record of a run: steps, held-out scores and filled blanks in, lines of JSON (and TensorBoard events) out.

One object a line, appended when it happens and never changed afterwards; `kind` tells the records apart.

    metrics.jsonl   kind "step":      step, phase, losses {name: mean}, rate, seconds, pieces, grad_norm
                    kind "held_out":  step, phase, losses {name: mean}, perplexity, accuracy, pair_accuracy or null
                    kind "score":     step, split, figures {name: value}
    samples.jsonl   kind "sample":    step, text, filled [for each blank [[piece, probability], …]]

A number that is not finite is one of the texts "nan", "inf" and "-inf", since JSON has no word for it. A line reaches
the operating system whole before `add` returns, so a killed process loses at most the line it was writing.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from bertworks.disk import explain_os_error
from bertworks.errors import FolderError, MissingDependencyError

METRICS, SAMPLES, EVENTS = "metrics.jsonl", "samples.jsonl", "events"
MASK_TOKEN = "[MASK]"  # what stands in a sample's text where a piece is hidden


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A logged training step. `seconds` is all the time the run has spent in steps, `pieces` all it has seen.

    The first of `losses` is the one over pieces, in nats; that over pairs, if there is one, follows.
    """

    step: int
    phase: str
    losses: dict[str, float]
    learning_rate: float
    seconds: float
    num_tokens: int
    grad_norm: float


@dataclass(frozen=True, slots=True)
class HeldOutRecord:
    """Scores on the held-out split after `step` steps; both accuracies lie in 0..1."""

    step: int
    phase: str
    losses: dict[str, float]
    perplexity: float
    accuracy: float
    pair_accuracy: float | None = None

    @property
    def loss(self) -> float:
        """The one to choose models by: the first part's."""
        return next(iter(self.losses.values()))


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """A text with blanks, and for each blank the pieces the model would put there, the likeliest first."""

    step: int
    text: str
    predictions: tuple[tuple[tuple[str, float], ...], ...]


@dataclass(frozen=True, slots=True)
class ScoreRecord:
    """What a fine-tuned model scored on a split after a step."""

    step: int
    split: str
    metrics: dict[str, float]


RunRecord = StepRecord | HeldOutRecord | SampleRecord | ScoreRecord


class Records:
    """The growing record of one run. Only one process writes it.

    Add what belongs to a step, then `sync`, then save that step's checkpoint: a checkpoint is then never ahead of the
    record, and cutting the record back to the checkpoint leaves neither a gap nor a line twice.
    """

    def __init__(self, metrics: BinaryIO, samples: BinaryIO, num_truncated: int) -> None:
        self._metrics = metrics
        self._samples = samples
        self._events: EventsWriter | None = None
        self.num_truncated = num_truncated  # lines of work that was lost and will be done again

    @classmethod
    def open(cls, folder: Path, last_step: int | None) -> Records:
        """Open the record of a run that goes on after the checkpoint of `last_step`; None: it starts from nothing.

        A torn last line and all lines of later steps are cut off.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            num_cut = sum(_truncate(folder / name, last_step) for name in (METRICS, SAMPLES))
            return cls((folder / METRICS).open("ab"), (folder / SAMPLES).open("ab"), num_cut)
        except OSError as error:
            raise explain_os_error(error, folder) from error

    def mirror(self, events: EventsWriter) -> None:
        """From now on, give every record to `events` as well."""
        self._events = events

    def add(self, record: RunRecord) -> None:
        file = self._samples if isinstance(record, SampleRecord) else self._metrics
        try:
            file.write(_encode_line(record))
            file.flush()
        except OSError as error:
            raise explain_os_error(error, Path(file.name)) from error
        if self._events is not None:
            self._events.add(record)

    def sync(self) -> None:
        """Wait until all lines are on the disk, safe even from a power cut."""
        for file in (self._metrics, self._samples):
            try:
                os.fsync(file.fileno())
            except OSError as error:
                raise explain_os_error(error, Path(file.name)) from error

    def close(self) -> None:
        self._metrics.close()
        self._samples.close()
        if self._events is not None:
            self._events.close()

    def __enter__(self) -> Records:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def read_records(folder: Path) -> Iterator[RunRecord]:
    """Yield the steps and held-out scores of a run in order, then its samples; a file that is missing yields nothing.

    A last line without its end is left out: the run was killed there, or is writing it just now.
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
        raise FolderError(f"{path} cannot be read: {error.strerror or error}; check the disk") from error


def _column() -> array[float]:
    return array("d")


@dataclass(slots=True)
class History:
    """The records of a run, in columns."""

    columns: dict[str, array[float]] = field(default_factory=lambda: defaultdict(_column))
    losses: dict[str, tuple[array[float], array[float]]] = field(  # steps, values
        default_factory=lambda: defaultdict(lambda: (_column(), _column()))
    )
    phases: list[tuple[int, str]] = field(default_factory=list)  # the first recorded step of each, its name
    held_out: list[HeldOutRecord] = field(default_factory=list)
    samples: list[SampleRecord] = field(default_factory=list)
    scores: list[ScoreRecord] = field(default_factory=list)
    read_errors: list[str] = field(default_factory=list)  # a sentence for each file that could not be read to its end

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
            for name in ("step", "rate", "seconds", "pieces", "grad_norm"):
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
        """The name of the loss over pieces: the first that was recorded."""
        names = [*self.losses, *(name for record in self.held_out for name in record.losses)]
        return names[0] if names else ""


def _encode_line(record: RunRecord) -> bytes:
    row = {"kind": _KINDS[type(record)]} | {
        part.name: _to_json_value(getattr(record, part.name)) for part in fields(record)
    }
    return (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _to_json_value(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, dict):
        return {key: _to_json_value(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [_to_json_value(one) for one in value]
    return value


def _parse_record(line: bytes, path: Path, number: int) -> RunRecord:
    try:
        row = json.loads(line)
        return _READERS[row["kind"]](row)
    except (ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise FolderError(
            f"{path}, line {number} is not a record of a run ({reason}); delete that line, or the file if it is foreign"
        ) from error


def _parse_step(row: Mapping[str, Any]) -> StepRecord:
    return StepRecord(
        step=int(row["step"]),
        phase=str(row["phase"]),
        losses=_parse_losses(row),
        learning_rate=float(row["rate"]),
        seconds=float(row["seconds"]),
        num_tokens=int(row["pieces"]),
        grad_norm=float(row["grad_norm"]),
    )


def _parse_held_out(row: Mapping[str, Any]) -> HeldOutRecord:
    pairs = row["pair_accuracy"]
    return HeldOutRecord(
        step=int(row["step"]),
        phase=str(row["phase"]),
        losses=_parse_losses(row),
        perplexity=float(row["perplexity"]),
        accuracy=float(row["accuracy"]),
        pair_accuracy=None if pairs is None else float(pairs),
    )


def _parse_sample(row: Mapping[str, Any]) -> SampleRecord:
    filled = tuple(tuple((str(piece), float(chance)) for piece, chance in blank) for blank in row["filled"])
    return SampleRecord(int(row["step"]), str(row["text"]), filled)


def _parse_losses(row: Mapping[str, Any]) -> dict[str, float]:
    # float() also reads the texts "nan", "inf" and "-inf"
    return {str(name): float(value) for name, value in dict(row["losses"]).items()}


def _parse_score(row: Mapping[str, Any]) -> ScoreRecord:
    return ScoreRecord(int(row["step"]), str(row["split"]), {str(k): float(v) for k, v in row["figures"].items()})


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
    """Cut `path` behind its last whole line of `last_step` or before; return the number of lines that went."""
    if not path.exists() or path.stat().st_size == 0:
        return 0
    with path.open("rb+") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            # From the end backwards, so that resuming a long run costs only what is cut.
            kept, num_cut = len(data), 0
            while kept > 0:
                start = data.rfind(b"\n", 0, kept - 1) + 1
                if _should_keep(data[start:kept], last_step):
                    break
                kept, num_cut = start, num_cut + 1
        file.truncate(kept)
        os.fsync(file.fileno())
    return num_cut


def _should_keep(line: bytes, last_step: int | None) -> bool:
    if last_step is None or not line.endswith(b"\n"):
        return False
    try:
        return int(json.loads(line)["step"]) <= last_step
    except (ValueError, KeyError, TypeError):
        return False  # a power cut can leave zeros where the last lines were


class EventsWriter:
    """Mirrors the records of a run as TensorBoard events in its folder `events`."""

    def __init__(self, folder: Path, last_step: int | None) -> None:
        """Go on after the checkpoint of `last_step`; TensorBoard hides the events of later steps. None: all of them."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingDependencyError("tensorboard", "tensorboard", "writing TensorBoard events") from error
        purge_step = 0 if last_step is None else last_step + 1
        self._previous = (0.0, 0) if last_step is None else None  # seconds and pieces at the step before, if known
        try:
            self._writer = SummaryWriter(str(folder / EVENTS), purge_step=purge_step)
        except OSError as error:
            raise explain_os_error(error, folder / EVENTS) from error

    def add(self, record: RunRecord) -> None:
        if isinstance(record, SampleRecord):
            self._writer.add_text("samples", _as_markdown(record), record.step)
        elif isinstance(record, HeldOutRecord):
            self._add_scalars(_held_out_scalars(record), record.step)
        elif isinstance(record, ScoreRecord):
            self._add_scalars({f"{record.split}/{name}": one for name, one in record.metrics.items()}, record.step)
        else:
            self._add_scalars(_step_scalars(record) | self._speed(record), record.step)
        self._writer.flush()  # else a killed process loses up to two minutes of events

    def close(self) -> None:
        self._writer.close()

    def _add_scalars(self, scalars: Mapping[str, float], step: int) -> None:
        for tag, value in scalars.items():
            self._writer.add_scalar(tag, value, step)

    def _speed(self, record: StepRecord) -> dict[str, float]:
        before, self._previous = self._previous, (record.seconds, record.num_tokens)
        if before is None or record.seconds <= before[0]:
            return {}
        return {"pieces_per_second": (record.num_tokens - before[1]) / (record.seconds - before[0])}


def _step_scalars(record: StepRecord) -> dict[str, float]:
    losses = {f"loss/{name}": value for name, value in record.losses.items()}
    return losses | {"rate": record.learning_rate, "grad_norm": record.grad_norm}


def _held_out_scalars(record: HeldOutRecord) -> dict[str, float]:
    scores = {f"held_out/{name}": value for name, value in record.losses.items()}
    scores |= {"held_out/perplexity": record.perplexity, "held_out/accuracy": record.accuracy}
    return scores if record.pair_accuracy is None else scores | {"held_out/pair_accuracy": record.pair_accuracy}


def _as_markdown(record: SampleRecord) -> str:
    blanks = (", ".join(f"`{piece}` {chance:.1%}" for piece, chance in blank) for blank in record.predictions)
    return "\n".join([record.text, "", *(f"{number}. {blank}" for number, blank in enumerate(blanks, start=1))])
