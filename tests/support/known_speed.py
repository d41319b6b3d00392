"""A machine whose speed is known: for tests of plans, which must not depend on how fast a machine is."""

from __future__ import annotations

from bertworks.commands.plan.benchmark import StepTiming, Trial
from bertworks.corpus.corpus import Corpus

# Seconds of a row of 128 places; a row of 512 takes five times as long.
ROW_SECONDS = {"tiny": 0.001, "mini": 0.004, "small": 0.016, "medium": 0.032, "base": 0.128, "large": 0.4}
LONG_ROW = 5.0
CHANGE = 0.1
ROW_PIECES_RATE = 0.9  # of the places hold a piece


class KnownSpeed:
    """Answers at once, and remembers what was asked."""

    def __init__(self, rate: float = 1e15, slowness: float = 1.0) -> None:
        self.rate = rate
        self.slowness = slowness
        self.trials: list[Trial] = []

    def product_rate(self) -> float:
        return self.rate

    def speed(self, trial: Trial, corpus: Corpus | None) -> StepTiming:
        self.trials.append(trial)
        rows = trial.recipe.batch_size
        row = ROW_SECONDS[trial.recipe.model.size] * (1.0 if trial.max_length == 128 else LONG_ROW) * self.slowness
        return StepTiming(
            trial.max_length, rows, ROW_PIECES_RATE * trial.max_length, rows * row, CHANGE * self.slowness, 3
        )

    @property
    def asked(self) -> list[tuple[str, int]]:
        return [(trial.recipe.model.size, trial.max_length) for trial in self.trials]
