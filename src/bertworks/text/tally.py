"""Figures about text in, their sum out: counters, spreads of lengths and one example a name, mergeable in any order.

All numbers are integers, an example is the one of the lowest rank, so the sum of two tallies does not depend on which
comes first. The size is bounded: names are few, and lengths are kept to seven leading bits.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

# How much of a line an example shows.
_MAX_EXCERPT_CHARACTERS = 100
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u200b\u200e\u200f\u2028-\u202e\u2060-\u2064\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


@dataclass(frozen=True, slots=True, order=True)
class Excerpt:
    """A short piece of the text and where it stands. The lowest rank is kept: (weight, block, place in the block)."""

    rank: tuple[int, int, int]
    text: str
    source: str

    def __str__(self) -> str:
        return f"“{self.text}” ({self.source})" if self.text else f"in {self.source}"


@dataclass(slots=True)
class TextStatistics:
    """What was counted in some blocks of text.

    `numbers` are totals by name, where "script: Latin" is the member Latin of the group script. `spreads` say how often
    each length occurs, rounded by `rounded`.
    """

    block: int = 0
    totals: Counter[str] = field(default_factory=Counter)
    histograms: dict[str, Counter[int]] = field(default_factory=dict)
    excerpts: dict[str, Excerpt] = field(default_factory=dict)

    def add_length(self, name: str, length: int) -> None:
        """Add a length to a spread."""
        if name not in self.histograms:
            self.histograms[name] = Counter()
        self.histograms[name][round_length(length)] += 1

    def add_excerpt(self, name: str, text: str, source: str, weight: int = 0) -> None:
        """Keep an example if none of lower weight came earlier in the text."""
        kept = self.excerpts.get(name)
        if kept is None or weight < kept.rank[0]:
            place = self.totals["documents read"]
            self.excerpts[name] = Excerpt((weight, self.block, place), preview(text), source)

    def group(self, name: str) -> dict[str, int]:
        """Return the members of a group and their totals, the largest first."""
        head = f"{name}: "
        members = {
            key.removeprefix(head): total for key, total in self.totals.items() if total and key.startswith(head)
        }
        return dict(sorted(members.items(), key=lambda item: (-item[1], item[0])))

    def merge(self, other: TextStatistics) -> None:
        """Add another tally to this one."""
        self.totals.update(other.totals)
        for name, spread in other.histograms.items():
            self.histograms.setdefault(name, Counter()).update(spread)
        for name, example in other.excerpts.items():
            self.excerpts[name] = min(example, self.excerpts.get(name, example))


def round_length(length: int) -> int:
    """Return a length with its seven leading bits only: exact below 128, within 1.6 % above."""
    shift = max(0, length.bit_length() - 7)
    return length >> shift << shift


def median(histogram: Counter[int]) -> int:
    """Return the length which half of the lengths do not exceed; 0 of an empty spread."""
    left = (histogram.total() + 1) // 2
    for length in sorted(histogram):
        left -= histogram[length]
        if left <= 0:
            return length
    return 0


def preview(text: str) -> str:
    """Return the start of a text on one line, as it can be shown: control characters escaped."""
    text = text.strip()
    short = text if len(text) <= _MAX_EXCERPT_CHARACTERS else text[: _MAX_EXCERPT_CHARACTERS - 1] + "…"
    return _INVISIBLE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), short)


def preview_around(text: str, start: int) -> str:
    """Return the part of the text around a place that should be seen."""
    first = max(0, start - _MAX_EXCERPT_CHARACTERS // 3)
    return ("…" if first else "") + text[first : first + _MAX_EXCERPT_CHARACTERS]
