"""The tally: rounding, medians, examples and merging, by hand."""

from __future__ import annotations

from collections import Counter

import pytest

from bertworks.text.statistics import TextStatistics, median, preview, preview_around, round_length


@pytest.mark.parametrize(("length", "kept"), [(0, 0), (127, 127), (129, 128), (512, 512), (519, 512), (1000, 1000)])
def test_lengths_keep_seven_leading_bits(length: int, kept: int) -> None:
    assert round_length(length) == kept


def test_the_median_is_the_length_that_half_do_not_exceed() -> None:
    assert median(Counter({1: 2, 5: 1, 9: 2})) == 5
    assert median(Counter({1: 2, 9: 2})) == 1
    assert median(Counter()) == 0


def test_merging_adds_numbers_and_keeps_the_earliest_example() -> None:
    early, late = TextStatistics(block=1), TextStatistics(block=2)
    for tally in (early, late):
        tally.totals["documents"] += tally.block
        tally.add_length("sentences a document", 3)
        tally.add_excerpt("html", f"block {tally.block}", "a.txt")
    both, reverse = TextStatistics(), TextStatistics()
    for one in (early, late):
        both.merge(one)
    for one in (late, early):
        reverse.merge(one)
    assert both == reverse
    assert both.totals["documents"] == 3
    assert both.histograms["sentences a document"] == Counter({3: 2})
    assert both.excerpts["html"].text == "block 1"


def test_an_example_of_lower_weight_wins() -> None:
    tally = TextStatistics()
    tally.add_excerpt("copied lines", "twice", "a.txt", weight=-2)
    tally.add_excerpt("copied lines", "nine times", "a.txt", weight=-9)
    tally.add_excerpt("copied lines", "three times", "a.txt", weight=-3)
    assert str(tally.excerpts["copied lines"]) == "“nine times” (a.txt)"


def test_groups_list_the_largest_first_and_leave_out_nothing_but_zeros() -> None:
    tally = TextStatistics(totals=Counter({"script: Latin": 2, "script: Han": 5, "script: Thai": 0, "lines": 9}))
    assert list(tally.group("script").items()) == [("Han", 5), ("Latin", 2)]


def test_shown_text_is_short_and_escapes_controls() -> None:
    assert preview(" a\x00b\nc\ufeff ") == "a\\x00b\\nc\\ufeff"
    assert len(preview("x" * 300)) == 100
    assert preview_around("a" * 50 + "HERE" + "b" * 200, 50) == "…" + "a" * 33 + "HERE" + "b" * 63
