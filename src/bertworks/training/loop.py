"""The training loop: a module `batch -> Loss` and its batches in, a stream of Steps out.

Checkpoints, progress and reports belong to its callers. It knows nothing of objectives or tasks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import nn

from bertworks.allocator import keep_freed_memory
from bertworks.encoders.layers import DropoutSeeds
from bertworks.objectives.loss import Loss
from bertworks.parallel.process_group import all_reduce_sum, broadcast, rank, world_size
from bertworks.records import StepRecord
from bertworks.sampling.batch import Batch
from bertworks.training.devices import LossScaler, Precision, finish_step
from bertworks.training.optimizer import BertAdam
from bertworks.training.schedule import Schedule
from bertworks.training.sharding import is_sharded
from bertworks.training.stateful import StatefulBatches


class Trainable(Protocol):
    """What the loop trains: it counts the targets of a batch, and computes the loss with a scale for each part."""

    def counts(self, batch: Batch) -> dict[str, int]: ...

    def __call__(self, batch: Batch, scales: Mapping[str, float], seeds: DropoutSeeds | None = None) -> Loss: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A finished optimizer step. `seconds` and `num_tokens` are totals of the run so far.

    `has_overflow`: fp16 gradients overflowed, and the parameters were not updated.
    """

    number: int
    phase: int
    losses: dict[str, float]
    learning_rate: float
    grad_norm: float
    seconds: float
    num_tokens: int
    has_overflow: bool = False

    def to_record(self, phase: str) -> StepRecord:
        """Return what metrics.jsonl holds of the step; `phase` is the name of its phase."""
        return StepRecord(
            step=self.number,
            phase=phase,
            losses=self.losses,
            learning_rate=self.learning_rate,
            seconds=self.seconds,
            num_tokens=self.num_tokens,
            grad_norm=self.grad_norm,
        )


@dataclass(slots=True, kw_only=True)
class TrainState:
    """The state of a run that a checkpoint saves besides tensors."""

    step: int = 0
    seconds: float = 0.0
    num_tokens: int = 0
    phase_steps: dict[int, int] = field(default_factory=dict)
    num_overflows: int = 0
    loss_scaler: LossScaler = field(default_factory=LossScaler)


# (phase, index of the step within the phase) -> the micro-batches of this process.
GetBatches = Callable[[int, int], Sequence[Batch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The inputs of the loop. The dropout masks of a step depend on `seed` and its number alone."""

    module: nn.Module
    trainable: Trainable
    optimizer: BertAdam
    schedule: Schedule
    get_batches: GetBatches
    seed: int
    precision: Precision = field(default_factory=Precision)
    stateful_batches: StatefulBatches = field(default_factory=StatefulBatches)


def train(training: Training, train_state: TrainState) -> Iterator[Step]:
    """Run steps until the schedule ends, and yield each; `train_state` is updated in place."""
    if not is_sharded(training.module):
        keep_freed_memory()
    training.module.train()
    while True:
        start_time = time.perf_counter()
        schedule_step = training.schedule.at(train_state.step, train_state.seconds)
        if schedule_step.phase is None:
            return
        # 1. Load the batches of this step; they depend on its number alone.
        batches = training.get_batches(schedule_step.phase, train_state.phase_steps.get(schedule_step.phase, 0))
        # 2. Count the targets of the whole step, over all micro-batches and processes.
        counts, num_tokens = _count_targets(training.trainable, batches)
        scales = {name: world_size() / max(count, 1) for name, count in counts.items()}
        # 3. Accumulate gradients; fp16 scales the loss, so that small gradients do not underflow.
        scale = train_state.loss_scaler.scale if training.precision.should_scale_loss else 1.0
        sums = dict.fromkeys(counts, 0.0)
        for index, batch in enumerate(batches):
            seeds = _dropout_seeds(training.seed, train_state.step, index, batch)
            with _sync_on_last(training.trainable, index == len(batches) - 1):
                with training.precision.autocast():
                    loss = training.trainable(training.stateful_batches.attach_state(batch), scales, seeds)
                (loss.value * scale).backward()  # type: ignore[no-untyped-call]
            training.stateful_batches.collect(loss.state)
            for name, part in loss.parts.items():
                sums[name] += float(part.total)
        training.stateful_batches.end_step()
        # 4. Update the parameters.
        grad_norm = training.optimizer.step(schedule_step.learning_rate, scale)
        finish_step(training.precision.device)
        has_overflow = training.precision.should_scale_loss and train_state.loss_scaler.update(grad_norm)
        # 5. Report.
        train_state.step += 1
        train_state.num_overflows += has_overflow
        train_state.phase_steps[schedule_step.phase] = train_state.phase_steps.get(schedule_step.phase, 0) + 1
        train_state.num_tokens += num_tokens
        losses = _mean_losses(sums, counts)
        train_state.seconds += broadcast(time.perf_counter() - start_time)
        yield Step(
            number=train_state.step,
            phase=schedule_step.phase,
            losses=losses,
            learning_rate=schedule_step.learning_rate,
            grad_norm=grad_norm,
            seconds=train_state.seconds,
            num_tokens=train_state.num_tokens,
            has_overflow=has_overflow,
        )


def _count_targets(trainable: Trainable, batches: Sequence[Batch]) -> tuple[dict[str, int], int]:
    """Return the number of targets of each loss part and the number of tokens of the step, over all processes."""
    counts: dict[str, int] = {}
    num_tokens = 0
    for batch in batches:
        num_tokens += batch.num_tokens
        for name, count in _unwrap(trainable).counts(batch).items():
            counts[name] = counts.get(name, 0) + count
    total_tokens, *total_counts = all_reduce_sum([num_tokens, *counts.values()])
    return dict(zip(counts, map(int, total_counts), strict=True)), int(total_tokens)


def _unwrap(trainable: Trainable) -> Trainable:
    """Return the module inside the DDP wrapper."""
    return getattr(trainable, "module", trainable)


def _sync_on_last(trainable: Trainable, is_last: bool) -> contextlib.AbstractContextManager[None]:
    """Have DDP all-reduce gradients only in the backward pass of the last micro-batch."""
    no_sync = getattr(trainable, "no_sync", None)
    return contextlib.nullcontext() if is_last or no_sync is None else no_sync()


def _dropout_seeds(seed: int, step: int, index: int, batch: Batch) -> DropoutSeeds:
    """Return the dropout seeds of a micro-batch: a hash of seed, step, its index and the rank."""
    unsigned_seed = (seed * 0x9E3779B1 + step * 0x85EBCA6B + index * 0xC2B2AE35 + rank() * 0x27D4EB2F) & 0xFFFFFFFF
    signed_seed = unsigned_seed - 2**32 if unsigned_seed >= 2**31 else unsigned_seed
    return DropoutSeeds(torch.tensor(signed_seed, dtype=torch.int32, device=batch.input_ids.device))


def _mean_losses(sums: Mapping[str, float], counts: Mapping[str, int]) -> dict[str, float]:
    totals = zip(sums, all_reduce_sum(list(sums.values())), strict=True)
    return {name: total / counts[name] for name, total in totals if counts[name]}
