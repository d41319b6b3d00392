"""TensorBoard events: the records of a run in, event files in its subfolder `events` out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bertworks.disk import explain_os_error
from bertworks.errors import MissingDependencyError
from bertworks.records import HeldOutRecord, RunRecord, SampleRecord, ScoreRecord, StepRecord

EVENTS = "events"


class EventsWriter:
    """Writes the records of a run as TensorBoard events into its subfolder `events`."""

    def __init__(self, folder: Path, last_step: int | None) -> None:
        """Resume after the checkpoint of `last_step` (None: from scratch); old events of later steps are ignored."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingDependencyError("tensorboard", "tensorboard", "writing TensorBoard events") from error
        purge_step = 0 if last_step is None else last_step + 1
        self._previous = (0.0, 0) if last_step is None else None  # seconds and tokens at the previous step, if known
        try:
            self._writer = SummaryWriter(str(folder / EVENTS), purge_step=purge_step)
        except OSError as error:
            raise explain_os_error(error, folder / EVENTS) from error
        self._folder = folder / EVENTS

    def add(self, record: RunRecord) -> None:
        """Write a record."""
        try:
            self._add(record)
            self._writer.flush()  # by default only every two minutes
        except OSError as error:
            raise explain_os_error(error, self._folder) from error

    def _add(self, record: RunRecord) -> None:
        if isinstance(record, SampleRecord):
            self._writer.add_text("samples", _as_markdown(record), record.step)
            return
        throughput = self._throughput(record) if isinstance(record, StepRecord) else {}
        self._add_scalars(scalars_of(record) | throughput, record.step)

    def close(self) -> None:
        self._writer.close()

    def _add_scalars(self, scalars: Mapping[str, float], step: int) -> None:
        for tag, value in scalars.items():
            self._writer.add_scalar(tag, value, step)

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
