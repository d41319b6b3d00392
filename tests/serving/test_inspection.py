"""Tokens with their texts, embeddings that sum up, and attention weights that match transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from bertworks.errors import InputError
from bertworks.inference.model import LoadedModel, load
from bertworks.serving.inspection import AttentionQuery, attention, embeddings, tokenize_text, truncate_encoding


@pytest.fixture(scope="module")
def model(folders: dict[str, Path], one_thread: None) -> LoadedModel:
    return load(folders["pretrained"])


def test_every_token_has_its_characters(model):
    _, fields = tokenize_text(model.tokenizer, "A cats", "dog")
    assert fields["tokens"] == ("[CLS]", "a", "cat", "##s", "[SEP]", "dog", "[SEP]")
    assert fields["texts"] == ["", "A", "cat", "s", "", "dog", ""]
    assert fields["token_type_ids"] == (0, 0, 0, 0, 0, 1, 1)
    assert fields["position_ids"] == tuple(range(7))
    assert fields["attention_mask"] == [1] * 7
    assert fields["offsets"] == (None, (0, 1), (2, 5), (5, 6), None, (0, 3), None)


def test_token_position_and_segment_embeddings_add_up_to_the_sum(model):
    encoding, _ = tokenize_text(model.tokenizer, "a cat", None)
    fields = embeddings(model.encoder, truncate_encoding(encoding, model.encoder))
    components = [np.array(fields["embedding_values"][name]) for name in ("token", "position", "token_type")]
    np.testing.assert_allclose(sum(components), fields["embedding_values"]["sum"], atol=1e-6)
    assert components[0].shape == (4, 16)
    norm = model.encoder.token_embeddings.weight[encoding.input_ids[1]].norm().item()
    assert fields["embedding_norms"]["token"][1] == pytest.approx(norm)


def test_attention_weights_are_those_of_transformers(model, folders):
    peer = transformers.BertModel.from_pretrained(folders["pretrained"], attn_implementation="eager").eval()
    encoding, _ = tokenize_text(model.tokenizer, "a cat sat on the mat", "who sat")
    truncated = truncate_encoding(encoding, model.encoder)
    with torch.no_grad():
        attentions = peer(
            torch.tensor([truncated.input_ids]),
            token_type_ids=torch.tensor([truncated.token_type_ids]),
            output_attentions=True,
        ).attentions
    expected = torch.stack(attentions)[:, 0]  # (L, H, T, T)
    fields = attention(model.encoder, truncated, 0, AttentionQuery(10**6))
    assert (fields["num_layers"], fields["num_heads"]) == (2, 3)
    assert len(fields["attention_weights"]) == expected.numel()
    for layer, head, query, key, weight in fields["attention_weights"][:200]:
        assert weight == pytest.approx(expected[layer, head, query, key].item(), abs=1e-5)


def test_attention_weights_are_sorted_and_may_be_of_one_head(model):
    encoding, _ = tokenize_text(model.tokenizer, "a cat sat on the mat", None)
    truncated = truncate_encoding(encoding, model.encoder)
    entries = attention(model.encoder, truncated, 0, AttentionQuery(10**6))["attention_weights"]
    weights = [entry[4] for entry in entries]
    assert weights == sorted(weights, reverse=True)
    head_entries = attention(model.encoder, truncated, 0, AttentionQuery(5, layer=1, head=2))["attention_weights"]
    assert head_entries == [entry for entry in entries if entry[:2] == [1, 2]][:5]


def test_tokens_beyond_the_last_position_are_truncated_and_counted(model):
    encoding, _ = tokenize_text(model.tokenizer, " ".join(["cat"] * 40), None)
    fields = attention(model.encoder, truncate_encoding(encoding, model.encoder), 0, AttentionQuery(1))
    assert len(fields["tokens"]) == 32
    assert fields["num_truncated"] == 10


@pytest.mark.parametrize("query", [AttentionQuery(1, layer=2), AttentionQuery(1, head=3)])
def test_an_invalid_layer_or_head_is_rejected(query, model):
    encoding, _ = tokenize_text(model.tokenizer, "a cat", None)
    with pytest.raises(InputError, match=r"this model has (layer|head)s 0 to"):
        attention(model.encoder, truncate_encoding(encoding, model.encoder), 0, query)
