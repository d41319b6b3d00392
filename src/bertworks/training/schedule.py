"""Learning rate schedules: the number of a step and the seconds so far in, its phase and learning rate out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

# ULMFiT's slanted triangle: the peak learning rate divided by the final one.
_RATIO = 32.0
# The part of a run in which the learning rate of "wsd" decays.
DECAY_RATIO = 0.2


class ScheduleStep(NamedTuple):
    """Phase and learning rate of a step; `phase` is None when the run is over."""

    phase: int | None
    learning_rate: float


class Schedule(Protocol):
    """A pure function of the number of a step and of the seconds spent before it."""

    def at(self, step: int, seconds: float) -> ScheduleStep: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSchedule:
    """Linear warmup to the peak, then decay to zero (one of DECAYS), by steps, over consecutive phases.

    `phase_peaks` has the peak of each phase, if they differ: all have the same factor of it. `decay_ratio` is the part
    of the run in which "wsd" decays.
    """

    phase_steps: tuple[int, ...] = field(kw_only=False)
    warmup_steps: int = field(kw_only=False)
    peak_learning_rate: float = field(kw_only=False)
    decay: str = field(default="linear", kw_only=False)
    phase_peaks: tuple[float, ...] = ()
    decay_ratio: float = DECAY_RATIO

    def at(self, step: int, seconds: float) -> ScheduleStep:
        total = sum(self.phase_steps)
        end = 0
        for phase, steps in enumerate(self.phase_steps):
            end += steps
            if step < end:
                peak = self.phase_peaks[phase] if self.phase_peaks else self.peak_learning_rate
                factor = schedule_factor(step + 1, self.warmup_steps, total, self.decay, self.decay_ratio)
                return ScheduleStep(phase, peak * factor)
        return ScheduleStep(None, 0.0)


@dataclass(frozen=True, slots=True)
class SlantedTriangularSchedule:
    """ULMFiT's schedule: linear rise to the peak over the fraction `cut_frac`, then linear decay to peak / `ratio`."""

    num_steps: int
    cut_frac: float
    peak_learning_rate: float
    ratio: float = _RATIO

    def at(self, step: int, seconds: float) -> ScheduleStep:
        if step >= self.num_steps:
            return ScheduleStep(None, 0.0)
        cut = max(1, int(self.num_steps * self.cut_frac))
        fraction = step / cut if step < cut else 1 - (step - cut) / max(1, self.num_steps - cut)
        return ScheduleStep(0, self.peak_learning_rate * (1 + fraction * (self.ratio - 1)) / self.ratio)


@dataclass(frozen=True, slots=True)
class InverseSqrtSchedule:
    """The Transformer's schedule: linear warmup to the peak, then decay with the inverse square root of the step."""

    num_steps: int
    warmup_steps: int
    peak_learning_rate: float

    def at(self, step: int, seconds: float) -> ScheduleStep:
        if step >= self.num_steps:
            return ScheduleStep(None, 0.0)
        progress, warmup = step + 1, max(1, self.warmup_steps)
        return ScheduleStep(0, self.peak_learning_rate * min(progress / warmup, math.sqrt(warmup / progress)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSchedule:
    """The shape of StepSchedule by wall-clock time: the learning rate reaches zero when the budget is spent.

    Timings are not reproducible, so past steps are recorded in `history`, and a resumed run repeats those after its
    checkpoint from there.
    """

    budget: float
    phase_ratios: tuple[float, ...]
    warmup_ratio: float
    peak_learning_rate: float
    history: Mapping[int, ScheduleStep]
    decay: str = "linear"
    phase_peaks: tuple[float, ...] = ()
    decay_ratio: float = DECAY_RATIO

    def at(self, step: int, seconds: float) -> ScheduleStep:
        if step in self.history:
            return self.history[step]
        progress = seconds / self.budget
        if progress >= 1:
            return ScheduleStep(None, 0.0)
        end = 0.0
        total = sum(self.phase_ratios)
        for phase, ratio in enumerate(self.phase_ratios):
            end += ratio / total
            if progress < end:
                peak = self.phase_peaks[phase] if self.phase_peaks else self.peak_learning_rate
                factor = schedule_factor(progress, self.warmup_ratio, 1.0, self.decay, self.decay_ratio)
                return ScheduleStep(phase, peak * factor)
        return ScheduleStep(len(self.phase_ratios) - 1, 0.0)


# The remaining fraction of the run after the warmup, and the fraction of it in which "wsd" decays -> the factor of the
# peak learning rate.
DECAYS: dict[str, Callable[[float, float], float]] = {
    "linear": lambda remaining, _: remaining,
    "cosine": lambda remaining, _: (1 - math.cos(math.pi * remaining)) / 2,
    "slanted-triangular": lambda remaining, _: (1 + (_RATIO - 1) * remaining) / _RATIO,
    "wsd": lambda remaining, decay_fraction: min(1.0, remaining / decay_fraction),  # warmup, stable, decay
}


def schedule_factor(
    progress: float, warmup: float, total: float, decay: str, decay_ratio: float = DECAY_RATIO
) -> float:
    """Return a factor of the peak: linear from 0 to 1 at `warmup`, then the decay until `total`.

    "wsd" stays at 1 and decays linearly to 0 over the last `decay_ratio` of the total, or as soon as the warmup ends.
    """
    if progress < warmup:
        return progress / warmup
    after_warmup = max(total - warmup, 1e-9)
    return DECAYS[decay](max(0.0, (total - progress) / after_warmup), min(1.0, decay_ratio * total / after_warmup))
