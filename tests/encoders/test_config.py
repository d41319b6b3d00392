"""Sizes of configs: a number that no model has is refused before anything is built."""

import math
from typing import Any

import pytest

from bertworks.encoders.families import ENCODERS
from bertworks.errors import SettingsError

BERT = ENCODERS["bert"]
CONFIG = {
    "vocab_size": 100, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 16, "type_vocab_size": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_hidden_layers", 10**9, "num_hidden_layers is 1000000000; it must be from 1 to 1,000"),
        ("hidden_size", 2**40, "hidden_size is 1099511627776; it must be from 1 to 16,777,216"),
        ("vocab_size", 2**31, "vocab_size is 2147483648; it must be from 1 to 16,777,216"),
        ("max_position_embeddings", 2**20, "max_position_embeddings is 1048576; it must be from 1 to 131,072"),
        ("hidden_size", [16], r"hidden_size should be a whole number above 0, but is \[16\]"),
    ],
)
def test_a_config_json_of_absurd_sizes_is_refused(key: str, value: Any, message: str):
    with pytest.raises(SettingsError, match=message):
        BERT.config_from_dict({**CONFIG, key: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0; it must be from 1"),
        ({"hidden_size": -8}, "hidden_size is -8; it must be from 1"),
    ],
)
def test_a_recipe_of_absurd_sizes_is_refused(changes: dict[str, int], message: str):
    with pytest.raises(SettingsError, match=message):
        BERT.config_from_preset("tiny", 100).resized(**changes)


@pytest.mark.parametrize("model_type", ENCODERS)
def test_a_dropout_may_be_the_whole_number_0(model_type: str):
    family = ENCODERS[model_type]
    table = family.config_to_dict(family.config_from_preset("tiny", 100), [])
    without = {key: 0 if "drop" in key and isinstance(value, float) else value for key, value in table.items()}
    assert family.config_from_dict(without).hidden_dropout_prob == 0
    assert family.config_from_preset("tiny", 100).resized(dropout_prob=0).hidden_dropout_prob == 0


@pytest.mark.parametrize("value", [0, 1, 1.5])
def test_the_standard_deviation_of_an_initialization_has_no_limit(value: float):
    assert BERT.config_from_dict({**CONFIG, "initializer_range": value}).initializer_range == value


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("hidden_dropout_prob", 1, "a number from 0 to below 1"),
        ("hidden_dropout_prob", -0.1, "a number from 0 to below 1"),
        ("initializer_range", -0.1, "a number from 0 up"),
        ("initializer_range", math.inf, "a number from 0 up"),
        ("layer_norm_eps", math.nan, "a number from 0 up"),
    ],
)
def test_numbers_out_of_range_are_refused(key: str, value: float, expected: str):
    with pytest.raises(SettingsError, match=f"{key} should be {expected}"):
        BERT.config_from_dict({**CONFIG, key: value})


@pytest.mark.parametrize("filters", [[], [[1, 0]], [[10**6, 8]], [[1, 2**40]], [[1, 8]] * 200, [[True, 8]]])
def test_filters_of_absurd_sizes_are_refused(filters: list[list[int]]):
    elmo = ENCODERS["elmo"]
    table = elmo.config_to_dict(elmo.config_from_preset("tiny", 100), [])
    with pytest.raises(SettingsError, match="filters should be pairs of a width and a number"):
        elmo.config_from_dict({**table, "filters": filters})
