"""Overlap: the same text in train and in dev or test is found whatever its case and spaces, in 8 bytes a text."""

import tracemalloc
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from bertworks.datasets.overlap import Overlap, overlap

TEXTS = st.lists(st.tuples(st.text(alphabet="aAb \n", max_size=4), st.text(alphabet="aB ", max_size=3)), max_size=20)


def test_texts_that_also_stand_in_train_are_counted_and_shown():
    train = [("A fine film.",), ("A dull film.",)]
    dev = [("A fine film.",), ("Another film.",), ("A dull film.",), ("A fine film.",)]
    assert overlap(train, dev) == Overlap(3, 4, (("A fine film.",), ("A dull film.",)))


def test_case_and_white_space_make_no_difference():
    found = overlap([("A fine  film.\n",), ("STRASSE",)], [(" a FINE\tfilm.",), ("a finefilm.",), ("Straße",)])
    assert found == Overlap(2, 3, ((" a FINE\tfilm.",), ("Straße",)))


def test_chinese_texts_are_compared_too():
    assert overlap([("这部电影很好。",)], [("这部电影很好。",), ("这部电影不好。",)]).count == 1


def test_a_pair_is_the_same_only_if_both_parts_are():
    train = [("a b", "c"), ("d", "")]
    assert overlap(train, [("a", "b c"), ("a b c",), ("c", "a b"), ("a b", "x"), ("d",)]).count == 0
    assert overlap(train, [("A B", "c "), ("D", " ")]).count == 2


def test_empty_texts_are_no_leak():
    assert overlap([("",), ("", " ")], [("",), (" ", "\n")]) == Overlap(0, 2, ())


def test_nothing_overlaps_with_nothing():
    assert overlap([], []) == Overlap(0, 0, ())
    assert overlap([], [("a",)]) == Overlap(0, 1, ())
    assert overlap([("a",)], []) == Overlap(0, 0, ())


def test_examples_are_few_and_each_is_shown_once():
    texts = [(f"text {number}",) for number in range(5_000)]
    found = overlap(reversed(texts), iter(texts * 2), max_examples=3)
    assert found == Overlap(10_000, 10_000, tuple(texts[:3]))


def test_half_a_surrogate_pair_is_a_text_like_any_other():
    assert overlap([("\ud83d",)], [("\ud83d",), ("\ud83c",)]).count == 1


@given(TEXTS, TEXTS)
def test_the_count_equals_that_of_a_set(train: list[tuple[str, str]], other: list[tuple[str, str]]):
    def same(text: tuple[str, str]) -> tuple[list[str], ...]:
        return tuple(part.lower().split() for part in text)

    known = [same(text) for text in train]
    expected = sum(same(text) in known and any(same(text)) for text in other)
    assert overlap(train, other).count == expected


def test_memory_is_eight_bytes_a_text_of_train_and_nothing_of_the_other():
    def long_texts(count: int) -> Iterator[tuple[str]]:
        return ((f"{number:0300}",) for number in range(count))

    tracemalloc.start()
    found = overlap(long_texts(20_000), long_texts(25_000))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (found.count, found.total) == (20_000, 25_000)
    # 160 kB of fingerprints and one block of 1,024 texts at a time (0.4 MB); the texts themselves would be 15 MB.
    assert most < 1_500_000
