"""Fingerprints of texts in, a bounded sample (bottom-k sketch) out, to estimate duplicates and overlap.

The sample holds the smallest fingerprints and their counts. A fingerprint among the smallest of all texts is among the
smallest of every subset, so its count is exact, samples can be merged in any order, and with up to MAX_SAMPLE_SIZE
distinct texts the sample is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

# 16 bytes each: 4 MiB per sample.
MAX_SAMPLE_SIZE = 2**18

Fingerprints = npt.NDArray[np.uint64]


def empty_fingerprints() -> Fingerprints:
    """Return an empty array of fingerprints."""
    return np.zeros(0, np.uint64)


def _empty_counts() -> npt.NDArray[np.int64]:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class FingerprintSample:
    """The smallest fingerprints of some texts and their counts; `is_complete` if there are no others.

    `total` counts all texts, `num_copies` the exact number of repetitions within a block.
    """

    values: Fingerprints = field(default_factory=empty_fingerprints)
    counts: npt.NDArray[np.int64] = field(default_factory=_empty_counts)
    total: int = 0
    num_copies: int = 0
    is_complete: bool = True

    @property
    def duplicate_ratio(self) -> float:
        """The ratio of texts that repeat an earlier one: exact if `is_complete`, else an estimate."""
        if not self.total:
            return 0.0
        num_sampled = int(self.counts.sum())
        # A line that fills the corpus may be missing from the sample, but its copies within each block are counted.
        return max(1 - len(self.values) / num_sampled, self.num_copies / self.total)

    def merge(self, other: FingerprintSample, max_size: int = MAX_SAMPLE_SIZE) -> FingerprintSample:
        """Return the sample of the texts of both."""
        values, inverse = np.unique(np.concatenate([self.values, other.values]), return_inverse=True)
        counts = np.bincount(inverse, np.concatenate([self.counts, other.counts]), len(values)).astype(np.int64)
        return FingerprintSample(
            values=values[:max_size],
            counts=counts[:max_size],
            total=self.total + other.total,
            num_copies=self.num_copies + other.num_copies,
            is_complete=self.is_complete and other.is_complete and len(values) <= max_size,
        )

    def overlap_ratio(self, values: Fingerprints) -> float:
        """Return the ratio of the texts whose fingerprints are in `values`."""
        num_sampled = int(self.counts.sum())
        return int(self.counts[np.isin(self.values, values)].sum()) / num_sampled if num_sampled else 0.0


def sample_fingerprints(fingerprints: Sequence[int], max_size: int = MAX_SAMPLE_SIZE) -> FingerprintSample:
    """Return the sample of the texts of one block."""
    values, counts = np.unique(np.array(fingerprints, dtype=np.uint64), return_counts=True)
    return FingerprintSample(
        values=values[:max_size],
        counts=counts[:max_size],
        total=len(fingerprints),
        num_copies=len(fingerprints) - len(values),
        is_complete=len(values) <= max_size,
    )
