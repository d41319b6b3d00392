"""How far an export is from its original in, a certificate or a refusal out, with the figures and the way out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from bertworks.engines.onnx_graph import LOGITS
from bertworks.errors import FolderError
from bertworks.exporters.parity import ParityResult
from bertworks.tasks.contract import TaskScores


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What an export may lose; None is not looked at.

    difference   the largest of any output; of logits larger than 1, relative to the largest of them
    cosine       the lowest mean cosine of sentence vectors
    points       by how many hundredths the dev metric may fall
    """

    difference: float | None = None
    cosine: float | None = None
    points: float = 1.0

    def with_overrides(self, difference: float | None, cosine: float | None, points: float | None) -> Tolerance:
        """Return the same with what a person asked for."""
        asked = {"difference": difference, "cosine": cosine, "points": points}
        return replace(self, **{name: value for name, value in asked.items() if value is not None})


@dataclass(frozen=True, slots=True)
class MetricChange:
    """The scores of a file before and after an export."""

    file: str
    before: TaskScores
    after: TaskScores

    @property
    def points_lost(self) -> float:
        """By how many hundredths the figure that models are chosen by has fallen."""
        return 100 * (self.before.main_value - self.after.main_value)

    def to_dict(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "metric": self.before.main_metric,
            "before": dict(self.before.metrics),
            "after": dict(self.after.metrics),
            "points_lost": self.points_lost,
        }


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was measured of an export on which texts, and what was allowed."""

    target: str
    sample_description: str
    parity: ParityResult
    tolerance: Tolerance
    scheme: Mapping[str, Any]
    metric_change: MetricChange | None = None

    @property
    def cosine(self) -> float:
        return float(self.parity.cosines.mean())

    @property
    def failures(self) -> list[str]:
        """What is beyond the tolerance, in words."""
        allowed, found = self.tolerance, []
        for name, far in self.parity.max_differences.items():
            limit = allowed.difference
            scale = max(1.0, self.parity.max_values[name]) if name == LOGITS else 1.0
            if limit is not None and not far <= limit * scale:
                found.append(f"{name} differs by {far:.2g}, and {limit * scale:.2g} is allowed (--tolerance)")
        if allowed.cosine is not None and not self.cosine >= allowed.cosine:
            found.append(f"the mean cosine is {self.cosine:.4f}, and {allowed.cosine:g} is asked for (--cosine)")
        if self.metric_change is not None and self.metric_change.points_lost > allowed.points:
            before, after, metric = (
                self.metric_change.before.main_value,
                self.metric_change.after.main_value,
                self.metric_change.before.main_metric,
            )
            fell = f"{metric} falls from {before:.4f} to {after:.4f}"
            found.append(f"{fell}, and {allowed.points:g} points are allowed (--points)")
        return found

    def check(self, original: str) -> None:
        """Refuse an export that loses too much."""
        if self.failures:
            raise FolderError(
                f"the export of {original} to {self.target} is refused, and nothing is written: on {self.sample_description} "
                f"{'; '.join(self.failures)}; allow more with these options, or export to another kind"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return what certificate.json holds."""
        cosines = self.parity.cosines
        return {
            "to": self.target,
            "scheme": dict(self.scheme),
            "texts": self.sample_description,
            "rows": len(cosines),
            "max_difference": self.parity.max_differences,
            "max_value": self.parity.max_values,
            "mean_cosine": self.cosine,
            "min_cosine": float(cosines.min()),
            "data": None if self.metric_change is None else self.metric_change.to_dict(),
            "tolerance": asdict(self.tolerance),
        }
