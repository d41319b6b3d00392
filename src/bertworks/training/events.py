"""TensorBoard events: the records of a run in, event files in its subfolder `events` out."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertworks.disk import explain_os_error
from bertworks.errors import MissingDependencyError
from bertworks.records import HeldOutRecord, RunRecord, SampleRecord, ScoreRecord, StepRecord

EVENTS = "events"


class EventsWriter:
    """Writes the records of a run as TensorBoard events into its subfolder `events`.

    Each record is on disk when `add` returns: torch's SummaryWriter writes in a thread, whose errors are printed as
    tracebacks.
    """

    def __init__(self, folder: Path, last_step: int | None) -> None:
        """Resume after the checkpoint of `last_step` (None: from scratch); old events of later steps are ignored."""
        try:
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise MissingDependencyError("tensorboard", "tensorboard", "writing TensorBoard events") from error
        self._previous = (0.0, 0) if last_step is None else None  # seconds and tokens at the previous step, if known
        self._path = folder / EVENTS / f"events.out.tfevents.{time.time_ns()}.{platform.node()}.{os.getpid()}"
        with self._explain():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("wb", buffering=0)
        self._records = RecordWriter(self._file)
        purge_step = 0 if last_step is None else last_step + 1
        self._write(purge_step, file_version="brain.Event:2")
        self._write(purge_step, session_log={"status": "START"})

    def add(self, record: RunRecord) -> None:
        """Write a record."""
        from torch.utils.tensorboard import summary

        if isinstance(record, SampleRecord):
            self._write(record.step, summary=summary.text("samples", _as_markdown(record)))
            return
        throughput = self._throughput(record) if isinstance(record, StepRecord) else {}
        for tag, value in (scalars_of(record) | throughput).items():
            self._write(record.step, summary=summary.scalar(tag, value))

    def close(self) -> None:
        self._file.close()

    def _write(self, step: int, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        event = Event(wall_time=time.time(), step=step, **content)
        with self._explain():
            self._records.write(event.SerializeToString())

    @contextlib.contextmanager
    def _explain(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise explain_os_error(error, self._path.parent) from error

    def _throughput(self, record: StepRecord) -> dict[str, float]:
        previous, self._previous = self._previous, (record.seconds, record.num_tokens)
        if previous is None or record.seconds <= previous[0]:
            return {}
        return {"tokens_per_second": (record.num_tokens - previous[1]) / (record.seconds - previous[0])}


def scalars_of(record: RunRecord) -> dict[str, float]:
    """Return the numbers of a record by name, as trackers of experiments show them; a sample has none."""
    if isinstance(record, HeldOutRecord):
        return _held_out_scalars(record)
    if isinstance(record, ScoreRecord):
        return {f"{record.split}/{name}": value for name, value in record.metrics.items()}
    return _step_scalars(record) if isinstance(record, StepRecord) else {}


def _step_scalars(record: StepRecord) -> dict[str, float]:
    losses = {f"loss/{name}": value for name, value in record.losses.items()}
    return losses | {"learning_rate": record.learning_rate, "grad_norm": record.grad_norm}


def _held_out_scalars(record: HeldOutRecord) -> dict[str, float]:
    scores = {f"held_out/{name}": value for name, value in record.losses.items()}
    scores |= {"held_out/perplexity": record.perplexity, "held_out/accuracy": record.accuracy}
    return scores if record.pair_accuracy is None else scores | {"held_out/pair_accuracy": record.pair_accuracy}


def _as_markdown(record: SampleRecord) -> str:
    masks = (", ".join(f"`{token}` {prob:.1%}" for token, prob in candidates) for candidates in record.predictions)
    return "\n".join([record.text, "", *(f"{number}. {mask}" for number, mask in enumerate(masks, start=1))])
