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
MAX_SAMPLE_SIZE = 2**18

Fingerprints = npt.NDArray[np.uint64]


def empty_fingerprints() -> Fingerprints:
    """Return an empty array of fingerprints."""
    return np.zeros(0, np.uint64)


def _empty_counts() -> npt.NDArray[np.int64]:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class FingerprintSample:
    """The smallest fingerprints of some texts and how often each occurs. `whole` says that none was left out.

    `total` counts all texts; `copies` those that stand a second time in the same block, which no sampling misses.
    """

    values: Fingerprints = field(default_factory=empty_fingerprints)
    counts: npt.NDArray[np.int64] = field(default_factory=_empty_counts)
    total: int = 0
    num_copies: int = 0
    is_complete: bool = True

    @property
    def duplicate_ratio(self) -> float:
        """The share of texts that stood there before: exact if `whole`, else an estimate."""
        if not self.total:
            return 0.0
        sampled = int(self.counts.sum())
        # One line that fills a corpus may be missing from a sample of lines, but its copies in each block are known.
        return max(1 - len(self.values) / sampled, self.num_copies / self.total)

    def merge(self, other: FingerprintSample, max_size: int = MAX_SAMPLE_SIZE) -> FingerprintSample:
        """Return the sample of both texts."""
        values = np.concatenate([self.values, other.values])
        kept, place = np.unique(values, return_inverse=True)
        times = np.bincount(place, np.concatenate([self.counts, other.counts]), len(kept)).astype(np.int64)
        return FingerprintSample(
            kept[:max_size],
            times[:max_size],
            self.total + other.total,
            self.num_copies + other.num_copies,
            self.is_complete and other.is_complete and len(kept) <= max_size,
        )

    def overlap_ratio(self, values: Fingerprints) -> float:
        """Return the share of the texts whose fingerprints are among the given ones."""
        sampled = int(self.counts.sum())
        return int(self.counts[np.isin(self.values, values)].sum()) / sampled if sampled else 0.0


def sample_fingerprints(fingerprints: Sequence[int], max_size: int = MAX_SAMPLE_SIZE) -> FingerprintSample:
    """Return the sample of the texts of one block."""
    values, times = np.unique(np.array(fingerprints, dtype=np.uint64), return_counts=True)
    size = len(fingerprints)
    return FingerprintSample(values[:max_size], times[:max_size], size, size - len(values), len(values) <= max_size)
