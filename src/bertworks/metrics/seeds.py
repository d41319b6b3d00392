"""Where the members of a comparison stand: values of several seeds in, means with deviations out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SeedStatistics:
    """A mean over seeds, and the deviation of one seed from it; that is not known of a single one."""

    mean: float
    std: float
    values: tuple[float, ...]

    @classmethod
    def from_values(cls, values: Iterable[float]) -> SeedStatistics:
        """Return the spread of values; of none, one that is not a number."""
        found = tuple(values)
        if not found:
            return cls(math.nan, math.nan, ())
        return cls(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else math.nan, found)

    def format(self, digits: int, scale: float = 1.0) -> str:
        """Return 81.2 ± 0.4; without a deviation 81.2; a dash for nothing."""
        if not self.values:
            return "–"
        told = f"{scale * self.mean:.{digits}f}"
        return told if math.isnan(self.std) else f"{told} ± {scale * self.std:.{digits}f}"


@dataclass(frozen=True, slots=True)
class MemberResult:
    """A member after a share of its budget, over all seeds.

    asks       the part of the pretraining loss that `held_out` is of: losses of different questions do not compare
    scores     by task, the main figure on dev, which `figures` names
    quality    the mean of these over the tasks; only of seeds that have all of them
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
