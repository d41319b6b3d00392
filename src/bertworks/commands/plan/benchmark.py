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
from bertworks.commands.pretrain.batches import Rows
from bertworks.commands.pretrain.recipe import PhaseRecipe, Recipe
from bertworks.corpus.corpus import Corpus
from bertworks.encoders.bert import Bert
from bertworks.encoders.stack import BertSizes
from bertworks.objectives.registry import OBJECTIVES
from bertworks.sampling.batch import Batch
from bertworks.sampling.samplers import ARRANGEMENTS, READS
from bertworks.training.devices import Precision
from bertworks.training.loop import Draw, Standing, Training, train
from bertworks.training.optimizer import AdamSettings, PaperAdam
from bertworks.training.schedule import ByStep

_MOST_STEPS = 20  # more would not make the median better
_MANY = 10**6  # steps: a trial never sees the end of its schedule
_WARMUP = 10**4  # of them: the rate stays so low that nothing can go wrong

# Fewer pieces at a time than this make products too small to tell the speed of larger ones.
_LEAST_PIECES = 512
# What share of the rate of one large product a step is expected to reach, to choose how many rows to try.
_EXPECTED_RATE = 0.4

_MATRIX = 2048  # large enough that only arithmetic counts
_NUM_PRODUCTS = 4


@dataclass(frozen=True, slots=True)
class Trial:
    """What to measure: a recipe of one phase, whose batch is what is tried, a vocabulary, and a limit in seconds."""

    recipe: Recipe
    vocabulary: int
    seconds: float

    @property
    def length(self) -> int:
        return self.recipe.phases[0].length


@dataclass(frozen=True, slots=True)
class Speed:
    """What a trial found. `passes` and `change` are seconds: the passes of `rows` examples, the optimizer's work.

    `row_pieces` is how many pieces an example really had, on the average: padding teaches nothing.
    """

    length: int
    rows: int
    row_pieces: float
    passes: float
    change: float
    num_steps: int

    def step_seconds(self, batch: int) -> float:
        """Return the seconds of a step: passes grow with the batch, the optimizer works once."""
        return self.passes * batch / self.rows + self.change


class Speedometer(Protocol):
    """Whoever measures: this machine, or in tests somebody who knows the answers."""

    def product_rate(self) -> float:
        """Return the operations a second of one large product of matrices."""
        ...

    def speed(self, trial: Trial, corpus: Corpus | None) -> Speed:
        """Return how fast a trial went."""
        ...


class Stopwatch:
    """Measures a device of this machine as it is now; whatever else runs on it slows the figures down."""

    def __init__(self, device: torch.device = torch.device("cpu")) -> None:
        self._device = device

    def product_rate(self) -> float:
        """Return the rate of the best of a few products: the limit that no step can pass."""
        matrix = torch.randn(_MATRIX, _MATRIX, generator=torch.Generator().manual_seed(0)).to(self._device)
        seconds = []
        for _ in range(_NUM_PRODUCTS):
            start = time.perf_counter()
            float((matrix @ matrix)[0, 0])  # waits for the device
            seconds.append(time.perf_counter() - start)
        return 2 * _MATRIX**3 / min(seconds)

    def speed(self, trial: Trial, corpus: Corpus | None) -> Speed:
        """Do steps until the time of the trial is used up, at least one. The first one only warms up, if it can."""
        start = time.perf_counter()
        training = self._training(trial, corpus)
        optimizer = training.optimizer
        assert isinstance(optimizer, _TimedAdam)
        ends, pieces = [0.0], 0
        for step in train(training, Standing()):
            ends.append(step.seconds)
            pieces = step.pieces
            if step.number > _MOST_STEPS or time.perf_counter() - start + ends[-1] - ends[-2] > trial.seconds:
                break
        warm = slice(1 if len(ends) > 2 else 0, None)
        times = [after - before for before, after in itertools.pairwise(ends)][warm]
        change = statistics.median(optimizer.seconds[warm])
        passes = max(statistics.median(times) - change, 0.0)
        rows = trial.recipe.batch
        return Speed(trial.length, rows, pieces / (rows * (len(ends) - 1)), passes, change, len(times))

    def _training(self, trial: Trial, corpus: Corpus | None) -> Training:
        recipe = trial.recipe
        generator = torch.Generator().manual_seed(recipe.seed)
        encoder = Bert(recipe.model.sizes(trial.vocabulary), generator)
        encoder.recomputes = recipe.recompute
        module = OBJECTIVES[recipe.objective](encoder, generator).to(self._device)
        drawn = Rows(corpus, recipe).draw if corpus is not None else _random_rows(trial)
        return Training(
            module,
            module,
            _TimedAdam(module, recipe.optimizer),
            ByStep((_MANY,), _WARMUP, recipe.rate),
            lambda phase, step: [batch.to(self._device) for batch in drawn(phase, step)],
            recipe.seed,
            Precision(recipe.precision, self._device),
        )


def trial_of(recipe: Recipe, length: int, rows: int, vocabulary: int, seconds: float) -> Trial:
    """Return the trial of a few rows of one length, otherwise as the recipe says."""
    phase = PhaseRecipe(length, _MANY, 1.0)
    tried = replace(recipe, batch=rows, micro_batch=rows, phases=(phase,), budget="", warmup=_WARMUP)
    return Trial(tried, vocabulary, seconds)


def rows_to_try(sizes: BertSizes, batch: int, length: int, rate: float, seconds: float) -> int:
    """Return how many rows of a batch to try, halving, so that two steps should be done within the time."""
    rows = batch
    while rows > 1 and rows // 2 * length >= _LEAST_PIECES:
        if 2 * step_flops(sizes, rows, length) <= _EXPECTED_RATE * rate * seconds:
            break
        rows //= 2
    return rows


class _TimedAdam(PaperAdam):
    """The optimizer, with the time that each of its steps took."""

    def __init__(self, module: nn.Module, settings: AdamSettings) -> None:
        super().__init__(module, settings)
        self.seconds: list[float] = []

    def step(self, rate: float, scale: float = 1.0) -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # what is still to be computed belongs to the passes
        start = time.perf_counter()
        norm = super().step(rate, scale)
        self.seconds.append(time.perf_counter() - start)
        return norm


def _random_rows(trial: Trial) -> Draw:
    """Return what draws one and the same batch of full rows of random pieces."""
    recipe, length = trial.recipe, trial.length
    generator = torch.Generator().manual_seed(recipe.seed)
    shape = (recipe.batch, length)
    ids = torch.randint(0, trial.vocabulary, shape, generator=generator)
    num_hidden = max(1, round(recipe.masking.rate * (length - 3)))
    chosen = torch.rand(shape, generator=generator).topk(num_hidden).indices.sort().values
    places = (chosen + length * torch.arange(recipe.batch)[:, None]).flatten()
    asks_pair = bool(ARRANGEMENTS[READS[recipe.objective].arrangement].labels)
    batch = Batch(
        ids=ids,
        segments=(torch.arange(length) >= length // 2).long().expand(shape).contiguous(),
        lengths=torch.full((recipe.batch,), length),
        places=places,
        targets=ids.flatten()[places],
        labels={"pair": torch.arange(recipe.batch) % 2} if asks_pair else {},
    )

    def draw(phase: int, step: int) -> Sequence[Batch]:
        return [batch]

    return draw
