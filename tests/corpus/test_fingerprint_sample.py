"""Samples of fingerprints: ratios worked out by hand, commutative merging, bounded size."""

from __future__ import annotations

import itertools

import numpy as np

from bertworks.corpus.deduplication import long_lines
from bertworks.corpus.fingerprint_sample import FingerprintSample, sample_fingerprints
from bertworks.text.document import Document


def test_complete_sample_counts_copies_exactly() -> None:
    merged = sample_fingerprints([1, 2, 3]).merge(sample_fingerprints([3, 3, 4]))
    assert merged.values.tolist() == [1, 2, 3, 4]
    assert merged.counts.tolist() == [1, 1, 3, 1]
    assert merged.total == 6
    assert merged.num_copies == 1
    assert merged.is_complete
    assert merged.duplicate_ratio == 1 - 4 / 6


def test_incomplete_sample_keeps_the_smallest_with_exact_counts_in_any_order() -> None:
    parts = [sample_fingerprints(values, 3) for values in ([9, 1, 7, 5], [1, 2, 8], [2, 2, 5, 6])]
    for order in itertools.permutations(parts):
        total = FingerprintSample()
        for part in order:
            total = total.merge(part, 3)
        assert total.values.tolist() == [1, 2, 5]
        assert total.counts.tolist() == [2, 3, 2]
        assert total.total == 11
        assert not total.is_complete


def test_line_that_fills_a_corpus_is_counted_even_if_not_sampled() -> None:
    sample = sample_fingerprints([1, 2, *[99] * 98], 2)
    assert sample.values.tolist() == [1, 2]
    assert sample.duplicate_ratio == 97 / 100


def test_overlap_ratio_counts_copies() -> None:
    assert sample_fingerprints([1, 1, 2, 3]).overlap_ratio(np.array([1, 7], np.uint64)) == 0.5
    assert FingerprintSample().overlap_ratio(np.array([1], np.uint64)) == 0.0


def test_long_lines_have_at_least_sixty_bytes() -> None:
    chinese = "春夏秋冬" * 5
    document = Document(("Yes.\n", "x" * 60 + "\n", chinese + "\n", "y" * 58 + "\n"), "a.txt")
    assert [text.strip() for _, _, text in long_lines(document)] == ["x" * 60, chinese]
