"""Overlap of train and dev or test: case and spaces are ignored, in 8 bytes per text."""

import tracemalloc
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from bertworks.datasets.overlap import Overlap, overlap

TEXTS = st.lists(st.tuples(st.text(alphabet="aAb \n", max_size=4), st.text(alphabet="aB ", max_size=3)), max_size=20)


def test_texts_that_are_also_in_train_are_counted():
    train = [("A fine film.",), ("A dull film.",)]
    dev = [("A fine film.",), ("Another film.",), ("A dull film.",), ("A fine film.",)]
    assert overlap(train, dev) == Overlap(3, 4, (("A fine film.",), ("A dull film.",)))


def test_case_and_white_space_are_ignored():
    result = overlap([("A fine  film.\n",), ("STRASSE",)], [(" a FINE\tfilm.",), ("a finefilm.",), ("Straße",)])
    assert result == Overlap(2, 3, ((" a FINE\tfilm.",), ("Straße",)))


def test_chinese_texts_are_compared():
    assert overlap([("这部电影很好。",)], [("这部电影很好。",), ("这部电影不好。",)]).count == 1


def test_a_pair_is_equal_if_both_parts_are():
    train = [("a b", "c"), ("d", "")]
    assert overlap(train, [("a", "b c"), ("a b c",), ("c", "a b"), ("a b", "x"), ("d",)]).count == 0
    assert overlap(train, [("A B", "c "), ("D", " ")]).count == 2


def test_empty_texts_do_not_overlap():
    assert overlap([("",), ("", " ")], [("",), (" ", "\n")]) == Overlap(0, 2, ())


def test_empty_splits_do_not_overlap():
    assert overlap([], []) == Overlap(0, 0, ())
    assert overlap([], [("a",)]) == Overlap(0, 1, ())
    assert overlap([("a",)], []) == Overlap(0, 0, ())


def test_examples_are_limited_and_distinct():
    texts = [(f"text {index}",) for index in range(5_000)]
    result = overlap(reversed(texts), iter(texts * 2), max_examples=3)
    assert result == Overlap(10_000, 10_000, tuple(texts[:3]))


def test_a_lone_surrogate_is_compared():
    assert overlap([("\ud83d",)], [("\ud83d",), ("\ud83c",)]).count == 1


@given(TEXTS, TEXTS)
def test_the_count_equals_an_exhaustive_search(train: list[tuple[str, str]], other: list[tuple[str, str]]):
    def normalize(text: tuple[str, str]) -> tuple[list[str], ...]:
        return tuple(part.lower().split() for part in text)

    known = [normalize(text) for text in train]
    expected = sum(normalize(text) in known and any(normalize(text)) for text in other)
    assert overlap(train, other).count == expected


def test_memory_is_eight_bytes_per_text_of_train():
    def long_texts(count: int) -> Iterator[tuple[str]]:
        return ((f"{index:0300}",) for index in range(count))

    tracemalloc.start()
    result = overlap(long_texts(20_000), long_texts(25_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (result.count, result.total) == (20_000, 25_000)
    # 160 kB of fingerprints and one block of 1,024 texts at a time (0.4 MB); the texts themselves would be 15 MB.
    assert peak < 1_500_000
