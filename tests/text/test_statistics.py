"""TextStatistics: rounding, medians, excerpts and merging, by hand."""

from __future__ import annotations

from collections import Counter

import pytest

from bertworks.text.statistics import TextStatistics, median, preview, preview_around, round_length


@pytest.mark.parametrize(("length", "rounded"), [(0, 0), (127, 127), (129, 128), (512, 512), (519, 512), (1000, 1000)])
def test_lengths_keep_seven_leading_bits(length: int, rounded: int) -> None:
    assert round_length(length) == rounded


def test_median_of_a_histogram() -> None:
    assert median(Counter({1: 2, 5: 1, 9: 2})) == 5
    assert median(Counter({1: 2, 9: 2})) == 1
    assert median(Counter()) == 0


def test_merging_adds_totals_and_keeps_the_earliest_excerpt() -> None:
    early, late = TextStatistics(block=1), TextStatistics(block=2)
    for statistics in (early, late):
        statistics.totals["documents"] += statistics.block
        statistics.add_length("sentences per document", 3)
        statistics.add_excerpt("html", f"block {statistics.block}", "a.txt")
    merged, reversed_merge = TextStatistics(), TextStatistics()
    for one in (early, late):
        merged.merge(one)
    for one in (late, early):
        reversed_merge.merge(one)
    assert merged == reversed_merge
    assert merged.totals["documents"] == 3
    assert merged.histograms["sentences per document"] == Counter({3: 2})
    assert merged.excerpts["html"].text == "block 1"


def test_excerpt_of_the_lowest_weight_is_kept() -> None:
    statistics = TextStatistics()
    statistics.add_excerpt("copied lines", "twice", "a.txt", weight=-2)
    statistics.add_excerpt("copied lines", "nine times", "a.txt", weight=-9)
    statistics.add_excerpt("copied lines", "three times", "a.txt", weight=-3)
    assert str(statistics.excerpts["copied lines"]) == "“nine times” (a.txt)"


def test_groups_are_sorted_by_total_without_zeros() -> None:
    statistics = TextStatistics(totals=Counter({"script: Latin": 2, "script: Han": 5, "script: Thai": 0, "lines": 9}))
    assert list(statistics.group("script").items()) == [("Han", 5), ("Latin", 2)]


def test_previews_are_short_and_escape_controls() -> None:
    assert preview(" a\x00b\nc\ufeff ") == "a\\x00b\\nc\\ufeff"
    assert len(preview("x" * 300)) == 100
    assert preview_around("a" * 50 + "HERE" + "b" * 200, 50) == "…" + "a" * 33 + "HERE" + "b" * 63
