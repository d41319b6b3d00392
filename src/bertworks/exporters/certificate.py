"""How far an export is from its original in, a certificate or a refusal out, with the figures and the way out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from bertworks.engines.onnx_graph import LOGITS
from bertworks.errors import FolderError
from bertworks.exporters.parity import Compared
from bertworks.tasks.contract import Scored


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

    def changed(self, difference: float | None, cosine: float | None, points: float | None) -> Tolerance:
        """Return the same with what a person asked for."""
        asked = {"difference": difference, "cosine": cosine, "points": points}
        return replace(self, **{name: value for name, value in asked.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Change:
    """The scores of a file before and after an export."""

    file: str
    before: Scored
    after: Scored

    @property
    def points(self) -> float:
        """By how many hundredths the figure that models are chosen by has fallen."""
        return 100 * (self.before.best - self.after.best)

    def as_json(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "metric": self.before.main,
            "before": dict(self.before.figures),
            "after": dict(self.after.figures),
            "points_lost": self.points,
        }


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was measured of an export on which texts, and what was allowed."""

    to: str
    texts: str
    compared: Compared
    tolerance: Tolerance
    scheme: Mapping[str, Any]
    change: Change | None = None

    @property
    def cosine(self) -> float:
        return float(self.compared.cosines.mean())

    @property
    def failures(self) -> list[str]:
        """What is beyond the tolerance, in words."""
        allowed, found = self.tolerance, []
        for name, far in self.compared.differences.items():
            limit = allowed.difference
            scale = max(1.0, self.compared.sizes[name]) if name == LOGITS else 1.0
            if limit is not None and not far <= limit * scale:
                found.append(f"{name} differs by {far:.2g}, and {limit * scale:.2g} is allowed (--tolerance)")
        if allowed.cosine is not None and not self.cosine >= allowed.cosine:
            found.append(f"the mean cosine is {self.cosine:.4f}, and {allowed.cosine:g} is asked for (--cosine)")
        if self.change is not None and self.change.points > allowed.points:
            before, after, metric = self.change.before.best, self.change.after.best, self.change.before.main
            fell = f"{metric} falls from {before:.4f} to {after:.4f}"
            found.append(f"{fell}, and {allowed.points:g} points are allowed (--points)")
        return found

    def check(self, original: str) -> None:
        """Refuse an export that loses too much."""
        if self.failures:
            raise FolderError(
                f"the export of {original} to {self.to} is refused, and nothing is written: on {self.texts} "
                f"{'; '.join(self.failures)}; allow more with these options, or export to another kind"
            )

    def as_json(self) -> dict[str, Any]:
        """Return what certificate.json holds."""
        cosines = self.compared.cosines
        return {
            "to": self.to,
            "scheme": dict(self.scheme),
            "texts": self.texts,
            "rows": len(cosines),
            "max_difference": self.compared.differences,
            "max_value": self.compared.sizes,
            "mean_cosine": self.cosine,
            "min_cosine": float(cosines.min()),
            "data": None if self.change is None else self.change.as_json(),
            "tolerance": asdict(self.tolerance),
        }
