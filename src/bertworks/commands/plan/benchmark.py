"""Benchmark this machine: a Trial (a recipe and a size) in, the time of its steps out; and the FLOP/s of a matmul.

A trial runs real steps of the training loop, on batches of the corpus or, without one, on random tokens.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import nn

from bertworks.commands.plan.forecast import step_flops
from bertworks.commands.pretrain.batches import PretrainBatches
from bertworks.commands.pretrain.recipe import PhaseRecipe, PretrainRecipe
from bertworks.corpus.corpus import Corpus
from bertworks.encoders.config import EncoderConfig
from bertworks.encoders.families import family_of
from bertworks.encoders.precision import resolve_precision
from bertworks.objectives.registry import OBJECTIVES
from bertworks.sampling.batch import Batch
from bertworks.training.devices import Precision
from bertworks.training.loop import GetBatches, Training, TrainState, train
from bertworks.training.optimizer import AdamSettings, BertAdam
from bertworks.training.schedule import StepSchedule

_MAX_STEPS = 20  # more would not improve the median
_SCHEDULE_STEPS = 10**6  # a trial never reaches the end of its schedule
_WARMUP_STEPS = 10**4  # the learning rate stays so low that training cannot diverge

# With fewer tokens, matmuls are too small to predict the speed of larger ones.
_MIN_TOKENS = 512
# The part of the FLOP/s of a large matmul that a step is expected to reach, to choose the size of a trial.
_EXPECTED_UTILISATION = 0.4

_MATRIX_SIZE = 2048  # large enough to be compute-bound
_NUM_MATMULS = 4


@dataclass(frozen=True, slots=True)
class Trial:
    """What to time: a recipe with one phase and the batch size of the trial, a vocabulary size, and a time limit."""

    recipe: PretrainRecipe
    vocab_size: int
    seconds: float

    @property
    def max_length(self) -> int:
        return self.recipe.phases[0].max_length


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """The result of a trial: seconds of forward and backward pass of `num_sequences`, and of the optimizer.

    `tokens_per_sequence` is the mean number of tokens of a sequence, without padding.
    """

    max_length: int
    num_sequences: int
    tokens_per_sequence: float
    forward_backward_seconds: float
    optimizer_seconds: float
    num_steps: int

    def step_seconds(self, batch_size: int) -> float:
        """Return the time of a step: forward and backward scale with the batch size, the optimizer does not."""
        return self.forward_backward_seconds * batch_size / self.num_sequences + self.optimizer_seconds


class Benchmark(Protocol):
    """Times matmuls and training steps: on this machine, or in tests with known values."""

    def matmul_throughput(self) -> float:
        """Return the FLOP/s of one large matmul."""
        ...

    def time_steps(self, trial: Trial, corpus: Corpus | None) -> StepTiming:
        """Run a trial."""
        ...


class DeviceBenchmark:
    """Times a device of this machine; other load on it makes the results slower."""

    def __init__(self, device: torch.device = torch.device("cpu")) -> None:
        self._device = device

    def matmul_throughput(self) -> float:
        """Return the FLOP/s of the fastest of a few matmuls: an upper bound for any step."""
        matrix = torch.randn(_MATRIX_SIZE, _MATRIX_SIZE, generator=torch.Generator().manual_seed(0)).to(self._device)
        seconds = []
        for _ in range(_NUM_MATMULS):
            start = time.perf_counter()
            float((matrix @ matrix)[0, 0])  # synchronizes the device
            seconds.append(time.perf_counter() - start)
        return 2 * _MATRIX_SIZE**3 / min(seconds)

    def time_steps(self, trial: Trial, corpus: Corpus | None) -> StepTiming:
        """Run steps until the time of the trial is used up, at least one. If there are several, the first is warmup."""
        start = time.perf_counter()
        training = self._build_training(trial, corpus)
        optimizer = training.optimizer
        assert isinstance(optimizer, _TimedAdam)
        step_ends, num_tokens = [0.0], 0
        for step in train(training, TrainState()):
            step_ends.append(step.seconds)
            num_tokens = step.num_tokens
            if step.number > _MAX_STEPS or time.perf_counter() - start + step_ends[-1] - step_ends[-2] > trial.seconds:
                break
        timed_steps = slice(1 if len(step_ends) > 2 else 0, None)
        step_seconds = [after - before for before, after in itertools.pairwise(step_ends)][timed_steps]
        optimizer_seconds = statistics.median(optimizer.seconds[timed_steps])
        num_sequences = trial.recipe.batch_size
        return StepTiming(
            max_length=trial.max_length,
            num_sequences=num_sequences,
            tokens_per_sequence=num_tokens / (num_sequences * (len(step_ends) - 1)),
            forward_backward_seconds=max(statistics.median(step_seconds) - optimizer_seconds, 0.0),
            optimizer_seconds=optimizer_seconds,
            num_steps=len(step_seconds),
        )

    def _build_training(self, trial: Trial, corpus: Corpus | None) -> Training:
        recipe = trial.recipe
        generator = torch.Generator().manual_seed(recipe.seed)
        config = recipe.model.config(trial.vocab_size)
        encoder = family_of(config.model_type).build(config, generator)
        encoder.activation_checkpointing = recipe.activation_checkpointing
        module = OBJECTIVES[recipe.objective].build(encoder, generator).to(self._device)
        get_batches = PretrainBatches(corpus, recipe).get_batches if corpus is not None else _random_batches(trial)
        return Training(
            module=module,
            trainable=module,
            optimizer=_TimedAdam(module, recipe.optimizer, recipe.ema_decay),
            schedule=StepSchedule((_SCHEDULE_STEPS,), _WARMUP_STEPS, recipe.learning_rate),
            get_batches=lambda phase, step: [batch.to(self._device) for batch in get_batches(phase, step)],
            seed=recipe.seed,
            precision=Precision(resolve_precision(recipe.precision, self._device), self._device),
        )


def trial_of(recipe: PretrainRecipe, max_length: int, num_sequences: int, vocab_size: int, seconds: float) -> Trial:
    """Return a trial of the recipe with one sequence length and batch size."""
    phase = PhaseRecipe(max_length, steps=_SCHEDULE_STEPS, budget_ratio=1.0)
    trial_recipe = replace(
        recipe,
        batch_size=num_sequences,
        micro_batch_size=num_sequences,
        phases=(phase,),
        budget="",
        warmup_steps=_WARMUP_STEPS,
    )
    return Trial(trial_recipe, vocab_size, seconds)


def num_trial_sequences(
    config: EncoderConfig, batch_size: int, max_length: int, matmul_throughput: float, seconds: float
) -> int:
    """Return the batch size of a trial: `batch_size`, halved until two steps should fit into the time."""
    num_sequences = batch_size
    while num_sequences > 1 and num_sequences // 2 * max_length >= _MIN_TOKENS:
        if 2 * step_flops(config, num_sequences, max_length) <= _EXPECTED_UTILISATION * matmul_throughput * seconds:
            break
        num_sequences //= 2
    return num_sequences


class _TimedAdam(BertAdam):
    """The optimizer, with the time of each of its steps."""

    def __init__(self, module: nn.Module, settings: AdamSettings, ema_decay: float) -> None:
        super().__init__(module, settings, ema_decay=ema_decay)
        self.seconds: list[float] = []

    def step(self, learning_rate: float, scale: float = 1.0) -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # pending kernels belong to the forward and backward pass
        start = time.perf_counter()
        norm = super().step(learning_rate, scale)
        self.seconds.append(time.perf_counter() - start)
        return norm


def _random_batches(trial: Trial) -> GetBatches:
    """Return a function that always returns the same batch of full-length sequences of random tokens."""
    recipe, length = trial.recipe, trial.max_length
    generator = torch.Generator().manual_seed(recipe.seed)
    shape = (recipe.batch_size, length)
    input_ids = torch.randint(0, trial.vocab_size, shape, generator=generator)
    num_masked = max(1, round(recipe.masking.mask_prob * (length - 3)))
    columns = torch.rand(shape, generator=generator).topk(num_masked).indices.sort().values
    positions = (columns + length * torch.arange(recipe.batch_size)[:, None]).flatten()
    has_pairs = bool(OBJECTIVES[recipe.objective].label_names)
    batch = Batch(
        input_ids=input_ids,
        token_type_ids=(torch.arange(length) >= length // 2).long().expand(shape).contiguous(),
        lengths=torch.full((recipe.batch_size,), length),
        positions=positions,
        targets=input_ids.flatten()[positions],
        labels={"nsp": torch.arange(recipe.batch_size) % 2} if has_pairs else {},
    )

    def get_batches(phase: int, step: int) -> Sequence[Batch]:
        return [batch]

    return get_batches
