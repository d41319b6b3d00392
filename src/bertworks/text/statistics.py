"""TextStatistics: totals, histograms of lengths and one excerpt per name, mergeable in any order.

All numbers are integers and the excerpt of the lowest rank is kept, so merging is commutative. The size is bounded:
there are few names, and lengths are rounded to seven leading bits.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

_MAX_EXCERPT_CHARACTERS = 100
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u200b\u200e\u200f\u2028-\u202e\u2060-\u2064\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


@dataclass(frozen=True, slots=True, order=True)
class Excerpt:
    """A short part of the text and its location. The lowest rank is kept: (weight, block, document in the block)."""

    rank: tuple[int, int, int]
    text: str
    source: str

    def __str__(self) -> str:
        return f"“{self.text}” ({self.source})" if self.text else f"in {self.source}"


@dataclass(slots=True)
class TextStatistics:
    """Statistics of some blocks of text.

    `totals` are counts by name; "script: Latin" is the member Latin of the group script. `histograms` count how often
    each length occurs, rounded by `round_length`.
    """

    block: int = 0
    totals: Counter[str] = field(default_factory=Counter)
    histograms: dict[str, Counter[int]] = field(default_factory=dict)
    excerpts: dict[str, Excerpt] = field(default_factory=dict)

    def add_length(self, name: str, length: int) -> None:
        """Add a length to a histogram."""
        if name not in self.histograms:
            self.histograms[name] = Counter()
        self.histograms[name][round_length(length)] += 1

    def add_excerpt(self, name: str, text: str, source: str, weight: int = 0) -> None:
        """Keep an excerpt unless an earlier one has the same or a lower weight."""
        previous = self.excerpts.get(name)
        if previous is None or weight < previous.rank[0]:
            document = self.totals["documents read"]
            self.excerpts[name] = Excerpt((weight, self.block, document), preview(text), source)

    def group(self, name: str) -> dict[str, int]:
        """Return the members of a group and their totals, largest first."""
        prefix = f"{name}: "
        members = {
            key.removeprefix(prefix): total for key, total in self.totals.items() if total and key.startswith(prefix)
        }
        return dict(sorted(members.items(), key=lambda item: (-item[1], item[0])))

    def merge(self, other: TextStatistics) -> None:
        """Add the statistics of other blocks."""
        self.totals.update(other.totals)
        for name, histogram in other.histograms.items():
            self.histograms.setdefault(name, Counter()).update(histogram)
        for name, excerpt in other.excerpts.items():
            self.excerpts[name] = min(excerpt, self.excerpts.get(name, excerpt))


def round_length(length: int) -> int:
    """Return a length rounded to its seven leading bits: exact below 128, within 1.6 % above."""
    shift = max(0, length.bit_length() - 7)
    return length >> shift << shift


def median(histogram: Counter[int]) -> int:
    """Return the median length; 0 for an empty histogram."""
    remaining = (histogram.total() + 1) // 2
    for length in sorted(histogram):
        remaining -= histogram[length]
        if remaining <= 0:
            return length
    return 0


def preview(text: str) -> str:
    """Return the start of a text with control characters escaped, for display."""
    text = text.strip()
    short = text if len(text) <= _MAX_EXCERPT_CHARACTERS else text[: _MAX_EXCERPT_CHARACTERS - 1] + "…"
    return _INVISIBLE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), short)


def preview_around(text: str, start: int) -> str:
    """Return the part of a text around the index `start`."""
    first = max(0, start - _MAX_EXCERPT_CHARACTERS // 3)
    return ("…" if first else "") + text[first : first + _MAX_EXCERPT_CHARACTERS]
