"""How fast is this machine? A small trial of a recipe in, the seconds of its steps out; and the rate of products.

A trial does real steps of the one loop, on rows of the corpus or, where there is none, on random pieces.
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
from bertworks.encoders.bert import Bert
from bertworks.encoders.stack import BertConfig
from bertworks.objectives.registry import OBJECTIVES
from bertworks.sampling.batch import Batch
from bertworks.sampling.samplers import OBJECTIVE_INPUTS, SAMPLERS
from bertworks.training.devices import Precision
from bertworks.training.loop import GetBatches, Training, TrainState, train
from bertworks.training.optimizer import AdamSettings, BertAdam
from bertworks.training.schedule import StepSchedule

_MAX_STEPS = 20  # more would not make the median better
_SCHEDULE_STEPS = 10**6  # steps: a trial never sees the end of its schedule
_WARMUP_STEPS = 10**4  # of them: the rate stays so low that nothing can go wrong

# Fewer pieces at a time than this make products too small to tell the speed of larger ones.
_MIN_TOKENS = 512
# What share of the rate of one large product a step is expected to reach, to choose how many rows to try.
_EXPECTED_UTILISATION = 0.4

_MATRIX_SIZE = 2048  # large enough that only arithmetic counts
_NUM_MATMULS = 4


@dataclass(frozen=True, slots=True)
class Trial:
    """What to measure: a recipe of one phase, whose batch is what is tried, a vocabulary, and a limit in seconds."""

    recipe: PretrainRecipe
    vocab_size: int
    seconds: float

    @property
    def max_length(self) -> int:
        return self.recipe.phases[0].max_length


@dataclass(frozen=True, slots=True)
class StepTiming:
    """What a trial found. `passes` and `change` are seconds: the passes of `rows` examples, the optimizer's work.

    `row_pieces` is how many pieces an example really had, on the average: padding teaches nothing.
    """

    max_length: int
    num_sequences: int
    tokens_per_sequence: float
    forward_backward_seconds: float
    optimizer_seconds: float
    num_steps: int

    def step_seconds(self, batch_size: int) -> float:
        """Return the seconds of a step: passes grow with the batch, the optimizer works once."""
        return self.forward_backward_seconds * batch_size / self.num_sequences + self.optimizer_seconds


class Benchmark(Protocol):
    """Whoever measures: this machine, or in tests somebody who knows the answers."""

    def matmul_throughput(self) -> float:
        """Return the operations a second of one large product of matrices."""
        ...

    def time_steps(self, trial: Trial, corpus: Corpus | None) -> StepTiming:
        """Return how fast a trial went."""
        ...


class DeviceBenchmark:
    """Measures a device of this machine as it is now; whatever else runs on it slows the figures down."""

    def __init__(self, device: torch.device = torch.device("cpu")) -> None:
        self._device = device

    def matmul_throughput(self) -> float:
        """Return the rate of the best of a few products: the limit that no step can pass."""
        matrix = torch.randn(_MATRIX_SIZE, _MATRIX_SIZE, generator=torch.Generator().manual_seed(0)).to(self._device)
        seconds = []
        for _ in range(_NUM_MATMULS):
            start = time.perf_counter()
            float((matrix @ matrix)[0, 0])  # waits for the device
            seconds.append(time.perf_counter() - start)
        return 2 * _MATRIX_SIZE**3 / min(seconds)

    def time_steps(self, trial: Trial, corpus: Corpus | None) -> StepTiming:
        """Do steps until the time of the trial is used up, at least one. The first one only warms up, if it can."""
        start = time.perf_counter()
        training = self._build_training(trial, corpus)
        optimizer = training.optimizer
        assert isinstance(optimizer, _TimedAdam)
        ends, pieces = [0.0], 0
        for step in train(training, TrainState()):
            ends.append(step.seconds)
            pieces = step.num_tokens
            if step.number > _MAX_STEPS or time.perf_counter() - start + ends[-1] - ends[-2] > trial.seconds:
                break
        warm = slice(1 if len(ends) > 2 else 0, None)
        times = [after - before for before, after in itertools.pairwise(ends)][warm]
        change = statistics.median(optimizer.seconds[warm])
        passes = max(statistics.median(times) - change, 0.0)
        rows = trial.recipe.batch_size
        return StepTiming(trial.max_length, rows, pieces / (rows * (len(ends) - 1)), passes, change, len(times))

    def _build_training(self, trial: Trial, corpus: Corpus | None) -> Training:
        recipe = trial.recipe
        generator = torch.Generator().manual_seed(recipe.seed)
        encoder = Bert(recipe.model.config(trial.vocab_size), generator)
        encoder.activation_checkpointing = recipe.activation_checkpointing
        module = OBJECTIVES[recipe.objective](encoder, generator).to(self._device)
        drawn = PretrainBatches(corpus, recipe).get_batches if corpus is not None else _random_batches(trial)
        return Training(
            module,
            module,
            _TimedAdam(module, recipe.optimizer),
            StepSchedule((_SCHEDULE_STEPS,), _WARMUP_STEPS, recipe.learning_rate),
            lambda phase, step: [batch.to(self._device) for batch in drawn(phase, step)],
            recipe.seed,
            Precision(recipe.precision, self._device),
        )


def trial_of(recipe: PretrainRecipe, max_length: int, num_sequences: int, vocab_size: int, seconds: float) -> Trial:
    """Return the trial of a few rows of one length, otherwise as the recipe says."""
    phase = PhaseRecipe(max_length, _SCHEDULE_STEPS, 1.0)
    tried = replace(
        recipe,
        batch_size=num_sequences,
        micro_batch_size=num_sequences,
        phases=(phase,),
        budget="",
        warmup_steps=_WARMUP_STEPS,
    )
    return Trial(tried, vocab_size, seconds)


def num_trial_sequences(
    config: BertConfig, batch_size: int, max_length: int, matmul_throughput: float, seconds: float
) -> int:
    """Return how many rows of a batch to try, halving, so that two steps should be done within the time."""
    rows = batch_size
    while rows > 1 and rows // 2 * max_length >= _MIN_TOKENS:
        if 2 * step_flops(config, rows, max_length) <= _EXPECTED_UTILISATION * matmul_throughput * seconds:
            break
        rows //= 2
    return rows


class _TimedAdam(BertAdam):
    """The optimizer, with the time that each of its steps took."""

    def __init__(self, module: nn.Module, settings: AdamSettings) -> None:
        super().__init__(module, settings)
        self.seconds: list[float] = []

    def step(self, learning_rate: float, scale: float = 1.0) -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # what is still to be computed belongs to the passes
        start = time.perf_counter()
        norm = super().step(learning_rate, scale)
        self.seconds.append(time.perf_counter() - start)
        return norm


def _random_batches(trial: Trial) -> GetBatches:
    """Return what draws one and the same batch of full rows of random pieces."""
    recipe, length = trial.recipe, trial.max_length
    generator = torch.Generator().manual_seed(recipe.seed)
    shape = (recipe.batch_size, length)
    ids = torch.randint(0, trial.vocab_size, shape, generator=generator)
    num_hidden = max(1, round(recipe.masking.mask_prob * (length - 3)))
    chosen = torch.rand(shape, generator=generator).topk(num_hidden).indices.sort().values
    places = (chosen + length * torch.arange(recipe.batch_size)[:, None]).flatten()
    asks_pair = bool(SAMPLERS[OBJECTIVE_INPUTS[recipe.objective].sampler].label_names)
    batch = Batch(
        input_ids=ids,
        token_type_ids=(torch.arange(length) >= length // 2).long().expand(shape).contiguous(),
        lengths=torch.full((recipe.batch_size,), length),
        positions=places,
        targets=ids.flatten()[places],
        labels={"pair": torch.arange(recipe.batch_size) % 2} if asks_pair else {},
    )

    def draw(phase: int, step: int) -> Sequence[Batch]:
        return [batch]

    return draw
