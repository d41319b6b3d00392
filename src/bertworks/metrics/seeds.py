"""Where the members of a comparison stand: values of several seeds in, means with deviations out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean over seeds, and the deviation of one seed from it; that is not known of a single one."""

    mean: float
    deviation: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Return the spread of values; of none, one that is not a number."""
        found = tuple(values)
        if not found:
            return cls(math.nan, math.nan, ())
        return cls(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else math.nan, found)

    def words(self, digits: int, scale: float = 1.0) -> str:
        """Return 81.2 ± 0.4; without a deviation 81.2; a dash for nothing."""
        if not self.values:
            return "–"
        told = f"{scale * self.mean:.{digits}f}"
        return told if math.isnan(self.deviation) else f"{told} ± {scale * self.deviation:.{digits}f}"


@dataclass(frozen=True, slots=True)
class Standing:
    """A member after a share of its budget, over all seeds.

    asks       the part of the pretraining loss that `held_out` is of: losses of different questions do not compare
    scores     by task, the main figure on dev, which `figures` names
    quality    the mean of these over the tasks; only of seeds that have all of them
    """

    member: str
    share: float
    steps: Spread
    pieces: Spread
    minutes: Spread
    flops: Spread
    parameters: int
    asks: str
    held_out: Spread
    scores: Mapping[str, Spread]
    figures: Mapping[str, str]
    quality: Spread
