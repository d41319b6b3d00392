"""The one loop: a module `batch -> Loss` and rows to draw in, a stream of Steps out.

Saving, progress and reports are its callers. It knows nothing of objectives or tasks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.distributed
from torch import nn

from bertworks.allocator import keep_freed_memory
from bertworks.encoders.layers import DropoutSeeds
from bertworks.objectives.loss import Loss
from bertworks.sampling.batch import Batch
from bertworks.training.devices import LossScaler, Precision, finish_step
from bertworks.training.optimizer import BertAdam
from bertworks.training.schedule import Schedule
from bertworks.training.sharding import is_sharded
from bertworks.training.stateful import StatefulBatches


class Trainable(Protocol):
    """What the loop trains: how many answers a batch holds, and the loss when told how to scale them."""

    def counts(self, batch: Batch) -> dict[str, int]: ...

    def __call__(self, batch: Batch, scales: Mapping[str, float], seeds: DropoutSeeds | None = None) -> Loss: ...


@dataclass(frozen=True, slots=True)
class Step:
    """One step that was done. `seconds` is all the time the run has spent in steps, `pieces` all it has seen.

    `overflowed` says that half precision overflowed, so that the parameters stayed as they were.
    """

    number: int
    phase: int
    losses: dict[str, float]
    learning_rate: float
    grad_norm: float
    seconds: float
    num_tokens: int
    has_overflow: bool = False


@dataclass(slots=True)
class TrainState:
    """Where a run stands: what a checkpoint keeps besides tensors."""

    step: int = 0
    seconds: float = 0.0
    num_tokens: int = 0
    phase_steps: dict[int, int] = field(default_factory=dict)
    num_overflows: int = 0
    loss_scaler: LossScaler = field(default_factory=LossScaler)


# (phase, number of the step within the phase) -> the micro-batches of this process.
GetBatches = Callable[[int, int], Sequence[Batch]]


@dataclass(frozen=True, slots=True)
class Training:
    """All that a loop needs. `seed` keys dropout: what is dropped in a step depends on it and the step alone."""

    module: nn.Module
    trainable: Trainable
    optimizer: BertAdam
    schedule: Schedule
    get_batches: GetBatches
    seed: int
    precision: Precision = field(default_factory=Precision)
    stateful_batches: StatefulBatches = field(default_factory=StatefulBatches)


def train(training: Training, train_state: TrainState) -> Iterator[Step]:
    """Yield one Step after another until the pace says that it is over. `standing` is kept up to date."""
    if not is_sharded(training.module):
        keep_freed_memory()
    training.module.train()
    while True:
        started = time.perf_counter()
        moment = training.schedule.at(train_state.step, train_state.seconds)
        if moment.phase is None:
            return
        # 1. Draw the rows of this step; which ones follows from its number alone.
        batches = training.get_batches(moment.phase, train_state.phase_steps.get(moment.phase, 0))
        # 2. Count the answers of the whole step, over all micro-batches and processes.
        counts, num_pieces = _count_targets(training.trainable, batches)
        scales = {name: world_size() / max(count, 1) for name, count in counts.items()}
        # 3. Add up the gradients, scaled up where half precision would lose them.
        scale = train_state.loss_scaler.scale if training.precision.should_scale_loss else 1.0
        sums = dict.fromkeys(counts, 0.0)
        for place, batch in enumerate(batches):
            seeds = _dropout_seeds(training.seed, train_state.step, place, batch)
            with _sync_on_last(training.trainable, place == len(batches) - 1):
                with training.precision.autocast():
                    loss = training.trainable(training.stateful_batches.attach_state(batch), scales, seeds)
                (loss.value * scale).backward()  # type: ignore[no-untyped-call]
            training.stateful_batches.collect(loss.state)
            for name, part in loss.parts.items():
                sums[name] += float(part.total)
        training.stateful_batches.end_step()
        # 4. Change the parameters.
        norm = training.optimizer.step(moment.learning_rate, scale)
        finish_step(training.precision.device)
        overflowed = training.precision.should_scale_loss and train_state.loss_scaler.update(norm)
        # 5. Tell.
        train_state.step += 1
        train_state.num_overflows += overflowed
        train_state.phase_steps[moment.phase] = train_state.phase_steps.get(moment.phase, 0) + 1
        train_state.num_tokens += num_pieces
        losses = _mean_losses(sums, counts)
        train_state.seconds += _broadcast(time.perf_counter() - started)
        seconds, pieces = train_state.seconds, train_state.num_tokens
        yield Step(train_state.step, moment.phase, losses, moment.learning_rate, norm, seconds, pieces, overflowed)


def world_size() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def _count_targets(trainable: Trainable, batches: Sequence[Batch]) -> tuple[dict[str, int], int]:
    """Return how many answers of each part and how many pieces the step has, everywhere."""
    counts: dict[str, int] = {}
    num_pieces = 0
    for batch in batches:
        num_pieces += batch.num_tokens
        for name, count in _unwrap(trainable).counts(batch).items():
            counts[name] = counts.get(name, 0) + count
    total, *others = all_reduce_sum([num_pieces, *counts.values()])
    return dict(zip(counts, map(int, others), strict=True)), int(total)


def all_reduce_sum(numbers: Sequence[float]) -> list[float]:
    """Return the sum of what all processes say, number by number."""
    if world_size() == 1:
        return list(numbers)
    told = torch.tensor(numbers, dtype=torch.float64)  # whole numbers up to 2^53 stay whole
    torch.distributed.all_reduce(told)
    return told.tolist()


def _unwrap(trainable: Trainable) -> Trainable:
    """Return the module inside torch's wrapper for many processes."""
    return getattr(trainable, "module", trainable)


def _sync_on_last(trainable: Trainable, is_last: bool) -> contextlib.AbstractContextManager[None]:
    """Let processes exchange gradients only with the last micro-batch of a step."""
    wait = getattr(trainable, "no_sync", None)
    return contextlib.nullcontext() if is_last or wait is None else wait()


def _dropout_seeds(seed: int, step: int, index: int, batch: Batch) -> DropoutSeeds:
    """Return the dropout seeds of one micro-batch of one step of this process."""
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    mixed = (seed * 0x9E3779B1 + step * 0x85EBCA6B + index * 0xC2B2AE35 + rank * 0x27D4EB2F) & 0xFFFFFFFF
    signed = mixed - 2**32 if mixed >= 2**31 else mixed
    return DropoutSeeds(torch.tensor(signed, dtype=torch.int32, device=batch.input_ids.device))


def _mean_losses(sums: Mapping[str, float], counts: Mapping[str, int]) -> dict[str, float]:
    totals = zip(sums, all_reduce_sum(list(sums.values())), strict=True)
    return {name: total / counts[name] for name, total in totals if counts[name]}


def _broadcast(seconds: float) -> float:
    """Return the time that all processes take a step to have lasted: the first one's."""
    if world_size() == 1:
        return seconds
    told = torch.tensor([seconds], dtype=torch.float64)
    torch.distributed.broadcast(told, 0)
    return float(told)
