"""Documents in, a bounded sample of their fingerprints out: enough to estimate duplicates and shared text.

The sample holds the smallest fingerprints and how often each occurs. A fingerprint among the smallest of all text is
among the smallest of every part of it, so its count is exact, samples can be merged in any order, and up to NUM_KEPT
different texts the sample is everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

# Of documents and of lines: 16 bytes each, 4 MiB a sample.
NUM_KEPT = 2**18

Values = npt.NDArray[np.uint64]


def no_values() -> Values:
    """Return an empty array of fingerprints."""
    return np.zeros(0, np.uint64)


def _no_times() -> npt.NDArray[np.int64]:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Sample:
    """The smallest fingerprints of some texts and how often each occurs. `whole` says that none was left out.

    `total` counts all texts; `copies` those that stand a second time in the same block, which no sampling misses.
    """

    values: Values = field(default_factory=no_values)
    times: npt.NDArray[np.int64] = field(default_factory=_no_times)
    total: int = 0
    copies: int = 0
    whole: bool = True

    @property
    def copy_rate(self) -> float:
        """The share of texts that stood there before: exact if `whole`, else an estimate."""
        if not self.total:
            return 0.0
        sampled = int(self.times.sum())
        # One line that fills a corpus may be missing from a sample of lines, but its copies in each block are known.
        return max(1 - len(self.values) / sampled, self.copies / self.total)

    def merge(self, other: Sample, num_kept: int = NUM_KEPT) -> Sample:
        """Return the sample of both texts."""
        values = np.concatenate([self.values, other.values])
        kept, place = np.unique(values, return_inverse=True)
        times = np.bincount(place, np.concatenate([self.times, other.times]), len(kept)).astype(np.int64)
        return Sample(
            kept[:num_kept],
            times[:num_kept],
            self.total + other.total,
            self.copies + other.copies,
            self.whole and other.whole and len(kept) <= num_kept,
        )

    def share_of(self, values: Values) -> float:
        """Return the share of the texts whose fingerprints are among the given ones."""
        sampled = int(self.times.sum())
        return int(self.times[np.isin(self.values, values)].sum()) / sampled if sampled else 0.0


def sample_of(fingerprints: Sequence[int], num_kept: int = NUM_KEPT) -> Sample:
    """Return the sample of the texts of one block."""
    values, times = np.unique(np.array(fingerprints, dtype=np.uint64), return_counts=True)
    size = len(fingerprints)
    return Sample(values[:num_kept], times[:num_kept], size, size - len(values), len(values) <= num_kept)
