"""When a run does what: a step's number and the time spent in, its phase, learning rate and whether all is done out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

# Of ULMFiT's slanted triangle: how much higher the peak is than where the rate ends.
_RATIO = 32.0


class ScheduleStep(NamedTuple):
    """What to do in a step. `phase` is None when the run is over."""

    phase: int | None
    learning_rate: float


class Schedule(Protocol):
    """Tells what a step is to do. A pure function of its number and of the seconds spent before it."""

    def at(self, step: int, seconds: float) -> ScheduleStep: ...


@dataclass(frozen=True, slots=True)
class StepSchedule:
    """Linear warm-up to the peak and decay to zero (one of FALLS), by steps; phases one after the other."""

    phase_steps: tuple[int, ...]
    warmup_steps: int
    peak_learning_rate: float
    decay: str = "linear"

    def at(self, step: int, seconds: float) -> ScheduleStep:
        total = sum(self.phase_steps)
        end = 0
        for phase, steps in enumerate(self.phase_steps):
            end += steps
            if step < end:
                return ScheduleStep(
                    phase, self.peak_learning_rate * _schedule_factor(step + 1, self.warmup_steps, total, self.decay)
                )
        return ScheduleStep(None, 0.0)


@dataclass(frozen=True, slots=True)
class SlantedTriangularSchedule:
    """ULMFiT's slanted triangle: a short rise to the peak over the share `cut`, then a long fall to peak / `ratio`."""

    num_steps: int
    cut_frac: float
    peak_learning_rate: float
    ratio: float = _RATIO

    def at(self, step: int, seconds: float) -> ScheduleStep:
        if step >= self.num_steps:
            return ScheduleStep(None, 0.0)
        top = max(1, int(self.num_steps * self.cut_frac))
        share = step / top if step < top else 1 - (step - top) / max(1, self.num_steps - top)
        return ScheduleStep(0, self.peak_learning_rate * (1 + share * (self.ratio - 1)) / self.ratio)


@dataclass(frozen=True, slots=True)
class InverseSqrtSchedule:
    """The Transformer's: a linear rise to the peak over `warmup` steps, then a fall with the root of the step."""

    num_steps: int
    warmup_steps: int
    peak_learning_rate: float

    def at(self, step: int, seconds: float) -> ScheduleStep:
        if step >= self.num_steps:
            return ScheduleStep(None, 0.0)
        done, top = step + 1, max(1, self.warmup_steps)
        return ScheduleStep(0, self.peak_learning_rate * min(done / top, math.sqrt(top / done)))


@dataclass(frozen=True, slots=True)
class TimeSchedule:
    """The same shape by wall-clock time: it ends at rate zero when the budget is spent.

    The clock never runs the same way twice, so what was done is recorded, and a run that is repeated from a
    checkpoint follows the record as far as it goes.
    """

    budget: float
    phase_ratios: tuple[float, ...]
    warmup_ratio: float
    peak_learning_rate: float
    history: Mapping[int, ScheduleStep]
    decay: str = "linear"

    def at(self, step: int, seconds: float) -> ScheduleStep:
        if step in self.history:
            return self.history[step]
        done = seconds / self.budget
        if done >= 1:
            return ScheduleStep(None, 0.0)
        end = 0.0
        total = sum(self.phase_ratios)
        for phase, share in enumerate(self.phase_ratios):
            end += share / total
            if done < end:
                return ScheduleStep(
                    phase, self.peak_learning_rate * _schedule_factor(done, self.warmup_ratio, 1.0, self.decay)
                )
        return ScheduleStep(len(self.phase_ratios) - 1, 0.0)


# How a rate falls: the share of the fall that is left -> the share of the peak.
DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda left: left,
    "cosine": lambda left: (1 - math.cos(math.pi * left)) / 2,
    "triangular": lambda left: (1 + (_RATIO - 1) * left) / _RATIO,
}


def _schedule_factor(progress: float, warmup: float, total: float, decay: str) -> float:
    """Return 0..1: up to 1 at `warmup`, then down to 0 at `total`."""
    if progress < warmup:
        return progress / warmup
    return DECAYS[decay](max(0.0, (total - progress) / max(total - warmup, 1e-9)))
