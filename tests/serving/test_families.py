"""Every encoder family served: a fine-tuned and a pretrained model of each, by all supported endpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from served_family import FAMILIES, LSTM_FAMILIES, PRETRAINING, write_finetuned_member, write_pretrained_member
from small_models import TASKS

from bertworks.encoders.families import family_of
from bertworks.errors import SettingsError
from bertworks.inference.model import load
from bertworks.serving.inspection import AttentionQuery, attention, truncate_encoding

TEXT = "john sat on the mat in paris"
MLM_FAMILIES = [family for family in FAMILIES if "mlm" in PRETRAINING[family].objective]


@pytest.fixture(scope="module")
def family_folders(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> dict[str, Path]:
    """For each family a classifier, a tagger and a pretrained model: FAMILY, FAMILY-tag, FAMILY-base."""
    folder = tmp_path_factory.mktemp("family")
    folders = {}
    for family in FAMILIES:
        folders[family] = write_finetuned_member(folder / family, family, TASKS["classify"])
        folders[f"{family}-tag"] = write_finetuned_member(folder / f"{family}-tag", family, TASKS["tag"])
        folders[f"{family}-base"] = write_pretrained_member(folder / f"{family}-base", family)
    return folders


@pytest.fixture(scope="module")
def post(make_client: Callable[..., Any], family_folders: dict[str, Path]) -> Callable[..., Any]:
    """Send a request: model, endpoint and body in; status and response out."""
    client = make_client(models=tuple(f"{name}={folder}" for name, folder in family_folders.items()))

    def send(name: str, endpoint: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        response = client("POST", f"/v1/models/{name}/{endpoint}", body)
        return response.status_code, response.json()

    return send


@pytest.mark.parametrize("family", FAMILIES)
def test_predictions_and_vectors_are_those_of_the_library(family, post, family_folders):
    for name in (family, f"{family}-tag"):
        status, response = post(name, "predict", {"inputs": [TEXT]})
        assert status == 200
        (expected,) = load(family_folders[name]).predict([TEXT])
        (prediction,) = response["predictions"]
        for key, value in expected.to_dict().items():
            if isinstance(value, str | list | tuple) and key != "id":
                assert prediction[key] == (list(value) if isinstance(value, tuple) else value)
    status, response = post(family, "embed", {"inputs": [TEXT, "a dull film"]})
    assert status == 200
    expected_vectors = load(family_folders[family]).encode([TEXT, "a dull film"])
    np.testing.assert_allclose(response["vectors"], expected_vectors, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_embeddings_of_a_token_add_up(family, post):
    status, response = post(family, "tokenize", {"text": TEXT, "embeddings": True})
    assert status == 200
    components = {name: np.array(values) for name, values in response["embedding_values"].items()}
    total = components.pop("sum")
    assert len(total) == len(response["tokens"])
    np.testing.assert_allclose(sum(components.values()), total, atol=1e-5)
    assert "".join(response["texts"]).replace(" ", "") == TEXT.replace(" ", "")


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_weights_are_those_of_transformers_where_there_is_attention(family, post, family_folders):
    status, response = post(family, "attention", {"text": TEXT, "pair": "a cat", "top_k": 20_000})
    if family in LSTM_FAMILIES:
        assert status == 422
        assert "its encoder has no attention" in response["error"]["message"]
        model = load(family_folders[family])
        encoding = truncate_encoding(model.tokenizer.encode(TEXT), model.encoder)
        with pytest.raises(SettingsError, match=f"'{family}' has no Transformer layers"):
            attention(model.encoder, encoding, 0, AttentionQuery(5))
        return
    assert status == 200
    length = len(response["tokens"])
    weights = np.zeros((response["num_layers"], response["num_heads"], length, length))
    for layer, head, query, key, weight in response["attention_weights"]:
        weights[layer, head, query, key] = weight
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-5)
    np.testing.assert_allclose(weights, transformers_attention_weights(family_folders[family], family), atol=1e-5)


def transformers_attention_weights(folder: Path, family: str) -> Any:
    """Return transformers' attention weights for the same pair: (L, H, T, T)."""
    model_class = getattr(transformers, family_of(family).class_prefix + "Model")
    peer = model_class.from_pretrained(folder, attn_implementation="eager").eval()
    encoding = load(folder).tokenizer.encode(TEXT, "a cat")
    inputs = {
        "input_ids": torch.tensor([encoding.input_ids]),
        "token_type_ids": torch.tensor([encoding.token_type_ids]),
    }
    if not family_of(family).has_token_types:
        del inputs["token_type_ids"]
    with torch.no_grad():
        attentions = peer(**inputs, output_attentions=True).attentions
    return torch.stack(attentions)[:, 0].numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_attributions_add_up_to_the_difference_of_the_outputs(family, post):
    for name in (family, f"{family}-tag"):
        status, response = post(name, "explain", {"input": TEXT})
        assert status == 200
        weights = [word["weight"] for text in response["texts"] for word in text["words"]]
        assert any(weights)
        delta = response["output"] - response["baseline_output"] - sum(weights) - response["context_weight"]
        assert abs(delta) <= 0.01 * sum(map(abs, weights)) + 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pretrained_model_fills_masks_generates_or_predicts_words_as_it_can(family, post, family_folders):
    name, model = f"{family}-base", load(family_folders[f"{family}-base"])
    mask = model.tokenizer.tokens[model.tokenizer.specials.mask]
    status, response = post(name, "fill-mask", {"text": f"john sat on the {mask}", "top_k": 3})
    assert status == (200 if family in MLM_FAMILIES else 422)
    if status == 200:
        assert [candidate["token"] for candidate in response["mask_candidates"][0]] == [
            candidate.token for candidate in model.fill_mask(f"john sat on the {mask}", 3).mask_candidates[0]
        ]
        # [MASK] stands for the mask token of any model
        generic = post(name, "fill-mask", {"text": "john sat on the [MASK]", "top_k": 3})[1]
        assert generic["mask_candidates"] == response["mask_candidates"]
        assert generic["text"] == "john sat on the [MASK]"
    status, response = post(name, "generate", {"text": "john sat", "max_new_tokens": 4})
    assert status == (200 if model.text_generator is not None else 422)
    if status == 200:
        assert tuple(response["tokens"]) == model.generate("john sat").tokens[:4]
        assert response["text"].startswith("john sat")
    status, response = post(name, "next", {"text": "john sat on the", "top_k": 2})
    if status == 200:
        words = [candidate["word"] for candidate in response["words"]]
        assert words == [candidate.word for candidate in model.next_words("john sat on the", 2)]
    assert status == (200 if model.can_predict_words else 422)


def test_the_word_before_a_text_needs_a_bidirectional_model(post):
    status, response = post("openai-gpt-base", "next", {"text": "sat", "backward": True})
    assert status == 422
    assert "cannot predict the word before" in response["error"]["message"]
    status, response = post("bert-base", "next", {"text": "sat", "backward": True})
    assert status == 200
    assert len(response["words"]) == 5
    assert post("bert-base", "generate", {"text": "sat"})[0] == 422


def test_sampling_depends_on_the_seed_and_invalid_settings_are_rejected(post):
    body = {"text": "the", "max_new_tokens": 6, "top_p": 0.9, "temperature": 2.0, "seed": 3}
    response = post("openai-gpt-base", "generate", body)
    assert post("openai-gpt-base", "generate", body) == response
    assert post("openai-gpt-base", "generate", {**body, "seed": 4}) != response
    greedy_body = {"text": "the", "max_new_tokens": 6}
    greedy = post("openai-gpt-base", "generate", greedy_body)[1]
    assert post("openai-gpt-base", "generate", {**greedy_body, "top_k": 1})[1]["tokens"] == greedy["tokens"]
    for settings in (
        {"max_new_tokens": 513},
        {"max_new_tokens": 0},
        {"top_p": 0},
        {"temperature": 0},
        {"top_k": -1},
        {"unknown": 1},
    ):
        assert post("openai-gpt-base", "generate", {"text": "the", **settings})[0] == 400
    status, response = post("openai-gpt-base", "generate", {"text": "cat " * 40})
    assert status == 422
    assert "shorten" in response["error"]["message"]
