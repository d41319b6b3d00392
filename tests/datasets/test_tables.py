"""Tables in memory: rows of each kind, classes by name, missing values, and what is refused."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from bertworks.datasets.tables import json_value, table_rows
from bertworks.errors import InputError

ROWS = [{"text": "good", "label": 1}, {"text": "bad", "label": 0}]


class PandasFrame:
    """The part of a pandas frame that is read."""

    columns = ("text", "label")

    def itertuples(self, index: bool, name: str | None) -> Iterator[tuple[Any, ...]]:
        assert (index, name) == (False, None)
        return iter([("good", 1), ("bad", 0)])


class PolarsFrame:
    """The part of a polars frame that is read."""

    def iter_rows(self, named: bool) -> Iterator[dict[str, Any]]:
        assert named
        return iter(ROWS)


@dataclass
class ClassLabel:
    """A feature of `datasets` with the names of classes."""

    names: list[str]


@dataclass
class ListOf:
    """A feature of `datasets` with several values."""

    feature: ClassLabel


@dataclass
class Dataset:
    """The part of a `datasets.Dataset` that is read."""

    rows: list[dict[str, Any]]
    features: dict[str, Any]
    column_names: list[str] = field(default_factory=lambda: ["text", "label"])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)


@pytest.mark.parametrize("table", [{"text": ["good", "bad"], "label": [1, 0]}, PandasFrame(), PolarsFrame()])
def test_every_kind_of_table_has_the_same_rows(table: Any):
    rows = table_rows(table, "train")
    assert rows is not None
    assert list(rows) == ROWS


def test_classes_of_a_dataset_are_named_and_minus_one_is_unknown():
    names = ClassLabel(["neg", "pos"])
    rows = [
        {"text": "good", "label": 1, "tags": [0, 1], "other": [1]},
        {"text": "?", "label": -1, "tags": [], "other": []},
    ]
    features = {"text": None, "label": names, "tags": ListOf(names), "other": [names]}
    table = table_rows(Dataset(rows, features), "train")
    assert table is not None
    assert list(table) == [
        {"text": "good", "label": "pos", "tags": ["neg", "pos"], "other": ["pos"]},
        {"text": "?", "label": None, "tags": [], "other": []},
    ]


def test_a_list_is_no_table():
    assert table_rows([("good", 1)], "train") is None


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"text": ["a", "b"], "label": [1]}, "train: the columns differ in length: 'text' has 2, 'label' has 1"),
        ({"text": "abc"}, "train: the column 'text' is a str; give a list"),
        ({"train": Dataset([], {}), "test": Dataset([], {})}, "train holds the splits 'train', 'test'; give one"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(table: Any, message: str):
    with pytest.raises(InputError, match=message):
        table_rows(table, "train")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.str_("a"), "a"),
        (np.array([1, 2]), [1, 2]),
        (torch.tensor([[1.0, math.nan]]), [[1.0, None]]),
        (math.nan, None),
        (("a", {"b": np.bool_(True)}), ["a", {"b": True}]),
        (datetime.date(2026, 1, 2), "2026-01-02"),
    ],
)
def test_values_become_those_of_json(value: Any, expected: Any):
    converted = json_value(value, "row 0")
    assert (converted, type(converted)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("value", "message"), [(b"a", "row 0: b'a' is of type bytes"), (math.inf, "row 0: inf is not")]
)
def test_values_that_json_lacks_are_refused(value: Any, message: str):
    with pytest.raises(InputError, match=message):
        json_value(value, "row 0")


def test_half_of_a_surrogate_pair_is_refused_as_in_a_file():
    assert json_value("😀", "train, row 0, text") == "😀"
    with pytest.raises(InputError, match=r"train, row 0, text: '\\ud800 a' has half of a surrogate pair"):
        json_value("\ud800 a", "train, row 0, text")
