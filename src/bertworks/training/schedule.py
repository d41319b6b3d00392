"""When a run does what: a step's number and the time spent in, its phase, learning rate and whether all is done out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

# Of ULMFiT's slanted triangle: how much higher the peak is than where the rate ends.
_RATIO = 32.0


class Moment(NamedTuple):
    """What to do in a step. `phase` is None when the run is over."""

    phase: int | None
    rate: float


class Pace(Protocol):
    """Tells what a step is to do. A pure function of its number and of the seconds spent before it."""

    def at(self, step: int, seconds: float) -> Moment: ...


@dataclass(frozen=True, slots=True)
class ByStep:
    """Linear warm-up to the peak and decay to zero (one of FALLS), by steps; phases one after the other."""

    phase_steps: tuple[int, ...]
    warmup: int
    peak: float
    fall: str = "linear"

    def at(self, step: int, seconds: float) -> Moment:
        total = sum(self.phase_steps)
        end = 0
        for phase, steps in enumerate(self.phase_steps):
            end += steps
            if step < end:
                return Moment(phase, self.peak * _risen(step + 1, self.warmup, total, self.fall))
        return Moment(None, 0.0)


@dataclass(frozen=True, slots=True)
class Triangular:
    """ULMFiT's slanted triangle: a short rise to the peak over the share `cut`, then a long fall to peak / `ratio`."""

    num_steps: int
    cut: float
    peak: float
    ratio: float = _RATIO

    def at(self, step: int, seconds: float) -> Moment:
        if step >= self.num_steps:
            return Moment(None, 0.0)
        top = max(1, int(self.num_steps * self.cut))
        share = step / top if step < top else 1 - (step - top) / max(1, self.num_steps - top)
        return Moment(0, self.peak * (1 + share * (self.ratio - 1)) / self.ratio)


@dataclass(frozen=True, slots=True)
class InverseRoot:
    """The Transformer's: a linear rise to the peak over `warmup` steps, then a fall with the root of the step."""

    num_steps: int
    warmup: int
    peak: float

    def at(self, step: int, seconds: float) -> Moment:
        if step >= self.num_steps:
            return Moment(None, 0.0)
        done, top = step + 1, max(1, self.warmup)
        return Moment(0, self.peak * min(done / top, math.sqrt(top / done)))


@dataclass(frozen=True, slots=True)
class ByClock:
    """The same shape by wall-clock time: it ends at rate zero when the budget is spent.

    The clock never runs the same way twice, so what was done is recorded, and a run that is repeated from a
    checkpoint follows the record as far as it goes.
    """

    budget: float
    phase_shares: tuple[float, ...]
    warmup_rate: float
    peak: float
    recorded: Mapping[int, Moment]
    fall: str = "linear"

    def at(self, step: int, seconds: float) -> Moment:
        if step in self.recorded:
            return self.recorded[step]
        done = seconds / self.budget
        if done >= 1:
            return Moment(None, 0.0)
        end = 0.0
        total = sum(self.phase_shares)
        for phase, share in enumerate(self.phase_shares):
            end += share / total
            if done < end:
                return Moment(phase, self.peak * _risen(done, self.warmup_rate, 1.0, self.fall))
        return Moment(len(self.phase_shares) - 1, 0.0)


# How a rate falls: the share of the fall that is left -> the share of the peak.
FALLS: dict[str, Callable[[float], float]] = {
    "linear": lambda left: left,
    "cosine": lambda left: (1 - math.cos(math.pi * left)) / 2,
    "triangular": lambda left: (1 + (_RATIO - 1) * left) / _RATIO,
}


def _risen(done: float, warmup: float, total: float, fall: str) -> float:
    """Return 0..1: up to 1 at `warmup`, then down to 0 at `total`."""
    if done < warmup:
        return done / warmup
    return FALLS[fall](max(0.0, (total - done) / max(total - warmup, 1e-9)))
