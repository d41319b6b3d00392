"""Parity: cosines by hand, and no difference between a model and itself."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from exported_models import encoder, pretrained, sentence_model

from bertworks.exporters.parity import builtin_sample, compare, cosines_of, sample_of_texts
from bertworks.exporters.sample_texts import TEXTS
from bertworks.inference.model import load

pytestmark = pytest.mark.usefixtures("one_thread")


def test_cosines_by_hand():
    left = np.array([[3.0, 4.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]], np.float32)
    right = np.array([[6.0, 8.0], [0.0, 2.0], [1.0, 0.0], [1.0, 0.0]], np.float32)
    np.testing.assert_allclose(cosines_of(left, right), [1, 0, math.sqrt(0.5), 0])


def test_the_cosine_of_nan_is_zero():
    assert cosines_of(np.array([[1.0, 1.0]]), np.array([[np.nan, 1.0]])).tolist() == [0.0]


def test_the_built_in_texts_are_in_both_languages_and_of_many_lengths():
    assert len(set(TEXTS)) == 36
    assert sum(text.isascii() for text in TEXTS) == 18
    assert min(map(len, TEXTS)) < 5
    assert max(map(len, TEXTS)) > 200


def test_texts_are_truncated_to_the_maximal_length_of_the_model(tmp_path: Path):
    model = load(sentence_model(tmp_path / "model"))
    assert max(map(len, builtin_sample(model).sequences)) == model.encoder.config.max_length == 32
    assert [len(sequence) for sequence in sample_of_texts(model, ["who", "john lives"], "f").sequences] == [3, 4]


def test_a_model_has_no_difference_to_itself(tmp_path: Path):
    model = load(pretrained(tmp_path / "model"))
    result = compare(model, model, builtin_sample(model))
    assert result.max_differences == {"last_hidden_state": 0.0, "pooler_output": 0.0, "logits": 0.0}
    np.testing.assert_allclose(result.cosines, 1.0)


def test_a_model_with_nan_has_an_infinite_difference(tmp_path: Path):
    model = load(pretrained(tmp_path / "model"))
    broken = replace(model, encoder=encoder())
    with torch.no_grad():
        broken.encoder.norm.weight.fill_(float("nan"))
    result = compare(model, broken, builtin_sample(model))
    assert result.max_differences["last_hidden_state"] == math.inf
    assert result.cosines.tolist() == [0.0] * 36
