"""Statistics over seeds: the values of several seeds in, means and standard deviations out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SeedStatistics:
    """The mean over seeds, and the standard deviation; NaN for a single seed."""

    mean: float
    std: float
    values: tuple[float, ...]

    @classmethod
    def from_values(cls, values: Iterable[float]) -> SeedStatistics:
        """Return the statistics of values; all NaN if there are none."""
        values = tuple(values)
        if not values:
            return cls(math.nan, math.nan, ())
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else math.nan, values)

    def format(self, digits: int, scale: float = 1.0) -> str:
        """Return "81.2 ± 0.4", or "81.2" without a deviation, or a dash without values."""
        if not self.values:
            return "–"
        mean = f"{scale * self.mean:.{digits}f}"
        return mean if math.isnan(self.std) else f"{mean} ± {scale * self.std:.{digits}f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResult:
    """A member of a comparison after a fraction of its budget, over all seeds.

    loss_part    the part of the pretraining loss that `held_out_loss` is: different parts are not comparable
    scores       by task, the main metric on dev; `main_metrics` are their names
    mean_score   the mean over the tasks, of seeds that have all of them
    """

    member: str
    budget_ratio: float
    steps: SeedStatistics
    tokens: SeedStatistics
    minutes: SeedStatistics
    flops: SeedStatistics
    num_parameters: int
    loss_part: str
    held_out_loss: SeedStatistics
    scores: Mapping[str, SeedStatistics]
    main_metrics: Mapping[str, str]
    mean_score: SeedStatistics
