"""The tally: rounding, medians, examples and merging, by hand."""

from __future__ import annotations

from collections import Counter

import pytest

from bertworks.text.tally import Tally, median, rounded, shown, shown_around


@pytest.mark.parametrize(("length", "kept"), [(0, 0), (127, 127), (129, 128), (512, 512), (519, 512), (1000, 1000)])
def test_lengths_keep_seven_leading_bits(length: int, kept: int) -> None:
    assert rounded(length) == kept


def test_the_median_is_the_length_that_half_do_not_exceed() -> None:
    assert median(Counter({1: 2, 5: 1, 9: 2})) == 5
    assert median(Counter({1: 2, 9: 2})) == 1
    assert median(Counter()) == 0


def test_merging_adds_numbers_and_keeps_the_earliest_example() -> None:
    early, late = Tally(block=1), Tally(block=2)
    for tally in (early, late):
        tally.numbers["documents"] += tally.block
        tally.measure("sentences a document", 3)
        tally.note("html", f"block {tally.block}", "a.txt")
    both, reverse = Tally(), Tally()
    for one in (early, late):
        both.merge(one)
    for one in (late, early):
        reverse.merge(one)
    assert both == reverse
    assert both.numbers["documents"] == 3
    assert both.spreads["sentences a document"] == Counter({3: 2})
    assert both.examples["html"].text == "block 1"


def test_an_example_of_lower_weight_wins() -> None:
    tally = Tally()
    tally.note("copied lines", "twice", "a.txt", weight=-2)
    tally.note("copied lines", "nine times", "a.txt", weight=-9)
    tally.note("copied lines", "three times", "a.txt", weight=-3)
    assert str(tally.examples["copied lines"]) == "“nine times” (a.txt)"


def test_groups_list_the_largest_first_and_leave_out_nothing_but_zeros() -> None:
    tally = Tally(numbers=Counter({"script: Latin": 2, "script: Han": 5, "script: Thai": 0, "lines": 9}))
    assert list(tally.group("script").items()) == [("Han", 5), ("Latin", 2)]


def test_shown_text_is_short_and_escapes_controls() -> None:
    assert shown(" a\x00b\nc\ufeff ") == "a\\x00b\\nc\\ufeff"
    assert len(shown("x" * 300)) == 100
    assert shown_around("a" * 50 + "HERE" + "b" * 200, 50) == "…" + "a" * 33 + "HERE" + "b" * 63
