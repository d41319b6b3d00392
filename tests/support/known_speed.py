"""A Benchmark with known timings: tests of plans must not depend on the speed of a machine."""

from __future__ import annotations

from bertworks.commands.plan.benchmark import StepTiming, Trial
from bertworks.corpus.corpus import Corpus

# Seconds of a sequence of 128 tokens; one of 512 takes five times as long.
SEQUENCE_SECONDS = {"tiny": 0.001, "mini": 0.004, "small": 0.016, "medium": 0.032, "base": 0.128, "large": 0.4}
LONG_SEQUENCE_FACTOR = 5.0
OPTIMIZER_SECONDS = 0.1
TOKEN_RATIO = 0.9  # of the positions hold a token, the others padding


class KnownSpeed:
    """Returns known timings, and records the trials."""

    def __init__(self, throughput: float = 1e15, slowdown: float = 1.0) -> None:
        self.throughput = throughput
        self.slowdown = slowdown
        self.trials: list[Trial] = []

    def matmul_throughput(self) -> float:
        return self.throughput

    def time_steps(self, trial: Trial, corpus: Corpus | None) -> StepTiming:
        self.trials.append(trial)
        num_sequences = trial.recipe.batch_size
        length_factor = 1.0 if trial.max_length == 128 else LONG_SEQUENCE_FACTOR
        sequence_seconds = SEQUENCE_SECONDS[trial.recipe.model.size] * length_factor * self.slowdown
        return StepTiming(
            max_length=trial.max_length,
            num_sequences=num_sequences,
            tokens_per_sequence=TOKEN_RATIO * trial.max_length,
            forward_backward_seconds=num_sequences * sequence_seconds,
            optimizer_seconds=OPTIMIZER_SECONDS * self.slowdown,
            num_steps=3,
        )

    @property
    def timed(self) -> list[tuple[str, int]]:
        """The size and length of each trial."""
        return [(trial.recipe.model.size, trial.max_length) for trial in self.trials]
