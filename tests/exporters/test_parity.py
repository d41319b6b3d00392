"""Parity: cosines by hand, and no difference between a model and itself."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from exported_models import encoder, pretrained, sentence_model
from transformers import AutoModelForMaskedLM

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


def test_every_seventh_token_is_masked_and_its_loss_is_the_one_of_transformers(tmp_path: Path):
    """Of the eight tokens the fourth is masked: paris, after [CLS] at position 4."""
    model = load(pretrained(tmp_path / "model"))
    result = compare(model, model, sample_of_texts(model, ["john lives in paris who the film was"], "f"))
    peer = AutoModelForMaskedLM.from_pretrained(tmp_path / "model").eval()
    encoding = model.tokenizer.encode("john lives in [MASK] who the film was", parse_masks=True)
    with torch.inference_mode():
        log_probs = peer(torch.tensor([encoding.input_ids])).logits[0, 4].log_softmax(-1)
    paris = model.tokenizer.token_to_id("paris")
    assert result.mlm is not None
    assert result.mlm.num_masked == 1
    assert result.mlm.loss_before == result.mlm.loss_after == pytest.approx(-float(log_probs[paris]), abs=1e-4)
    assert result.mlm.same_ratio == 1.0


def test_a_model_that_predicts_other_tokens_has_another_loss(tmp_path: Path):
    model, other = load(pretrained(tmp_path / "model")), load(pretrained(tmp_path / "other"))
    assert other.mlm_head is not None
    with torch.no_grad():
        other.mlm_head.bias.zero_()
        other.mlm_head.bias[7] = 100.0  # it always predicts token 7
    result = compare(model, other, sample_of_texts(model, ["john lives in paris"], "f"))
    assert result.mlm is not None
    assert result.mlm.loss_after > 50
    assert result.mlm.same_ratio == 0.0


def test_texts_without_a_word_to_mask_have_no_mlm_loss(tmp_path: Path):
    model = load(pretrained(tmp_path / "model"))
    assert compare(model, model, sample_of_texts(model, ["who the", "zebra zebra zebra zebra"], "f")).mlm is None


def test_a_model_without_a_masked_lm_head_has_no_mlm_loss(tmp_path: Path):
    model = load(sentence_model(tmp_path / "model"))
    assert compare(model, model, builtin_sample(model)).mlm is None
