"""Certificates: the measured differences of an export in, a certificate or a refusal with the remedy out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from bertworks.engines.graph_names import LOGITS
from bertworks.errors import FolderError
from bertworks.exporters.parity import ParityResult
from bertworks.tasks.contract import TaskScores


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What an export may lose; None is not checked.

    difference   the maximal difference of any output; for logits above 1, relative to the largest of them
    cosine       the minimal mean cosine similarity of sentence vectors
    points       by how many percentage points the dev metric may fall
    """

    difference: float | None = None
    cosine: float | None = None
    points: float = 1.0

    def with_overrides(self, difference: float | None, cosine: float | None, points: float | None) -> Tolerance:
        """Return the tolerance with explicit values replaced."""
        overrides = {"difference": difference, "cosine": cosine, "points": points}
        return replace(self, **{name: value for name, value in overrides.items() if value is not None})


@dataclass(frozen=True, slots=True)
class MetricChange:
    """The metrics on a labelled file before and after an export."""

    file: str
    before: TaskScores
    after: TaskScores

    @property
    def points_lost(self) -> float:
        """By how many percentage points the main metric has fallen."""
        return 100 * (self.before.main_value - self.after.main_value)

    def to_dict(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "metric": self.before.main_metric,
            "before": dict(self.before.metrics),
            "after": dict(self.after.metrics),
            "points_lost": self.points_lost,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The measured differences of an export, the texts they were measured on, and the tolerance."""

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
        """One message for each exceeded tolerance."""
        tolerance, messages = self.tolerance, []
        for name, difference in self.parity.max_differences.items():
            limit = tolerance.difference
            scale = max(1.0, self.parity.max_values[name]) if name == LOGITS else 1.0
            if limit is not None and not difference <= limit * scale:
                messages.append(f"{name} differs by {difference:.2g}, and {limit * scale:.2g} is allowed (--tolerance)")
        if tolerance.cosine is not None and not self.cosine >= tolerance.cosine:
            messages.append(f"the mean cosine is {self.cosine:.4f}, and {tolerance.cosine:g} is required (--cosine)")
        change = self.metric_change
        if change is not None and change.points_lost > tolerance.points:
            messages.append(
                f"{change.before.main_metric} falls from {change.before.main_value:.4f} to "
                f"{change.after.main_value:.4f}, and {tolerance.points:g} points are allowed (--points)"
            )
        return messages

    def check(self, original: str) -> None:
        """Refuse an export that exceeds the tolerance."""
        if self.failures:
            raise FolderError(
                f"the export of {original} to {self.target} is refused, and nothing is written: on "
                f"{self.sample_description} {'; '.join(self.failures)}; raise the tolerance with these options, or "
                f"choose another target"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the content of certificate.json."""
        cosines = self.parity.cosines
        return {
            "to": self.target,
            "scheme": dict(self.scheme),
            "texts": self.sample_description,
            "sequences": len(cosines),
            "max_difference": self.parity.max_differences,
            "max_value": self.parity.max_values,
            "mean_cosine": self.cosine,
            "min_cosine": float(cosines.min()),
            "mlm": None if self.parity.mlm is None else asdict(self.parity.mlm),
            "data": None if self.metric_change is None else self.metric_change.to_dict(),
            "tolerance": asdict(self.tolerance),
        }
