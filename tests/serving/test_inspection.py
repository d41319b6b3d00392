"""What a model sees: pieces with their texts, embeddings that sum up, shares of attention as transformers has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from bertworks.errors import InputError
from bertworks.inference.model import Model, load
from bertworks.serving.inspection import AttentionQuery, attention, embeddings, tokenize_text, truncate_encoding


@pytest.fixture(scope="module")
def model(folders: dict[str, Path], one_thread: None) -> Model:
    return load(folders["pretrained"])


def test_every_piece_is_told_with_the_text_it_stands_for(model):
    _, told = tokenize_text(model.tokenizer, "A cats", "dog")
    assert told["pieces"] == ("[CLS]", "a", "cat", "##s", "[SEP]", "dog", "[SEP]")
    assert told["texts"] == ["", "A", "cat", "s", "", "dog", ""]
    assert told["segments"] == (0, 0, 0, 0, 0, 1, 1)
    assert told["positions"] == tuple(range(7))
    assert told["offsets"] == (None, (0, 1), (2, 5), (5, 6), None, (0, 3), None)


def test_the_three_embeddings_add_up_to_the_sum(model):
    encoding, _ = tokenize_text(model.tokenizer, "a cat", None)
    told = embeddings(model.encoder, truncate_encoding(encoding, model.encoder))
    parts = [np.array(told["sample"][name]) for name in ("piece", "position", "segment")]
    np.testing.assert_allclose(sum(parts), told["sample"]["sum"], atol=1e-6)
    assert parts[0].shape == (4, 16)
    wanted = model.encoder.pieces.weight[encoding.input_ids[1]].norm().item()
    assert told["norms"]["piece"][1] == pytest.approx(wanted)


def test_links_are_the_shares_that_transformers_computes(model, folders):
    peer = transformers.BertModel.from_pretrained(folders["pretrained"], attn_implementation="eager").eval()
    encoding, _ = tokenize_text(model.tokenizer, "a cat sat on the mat", "who sat")
    row = truncate_encoding(encoding, model.encoder)
    with torch.no_grad():
        found = peer(
            torch.tensor([row.input_ids]), token_type_ids=torch.tensor([row.token_type_ids]), output_attentions=True
        ).attentions
    wanted = torch.stack(found)[:, 0]  # (L, H, T, T)
    told = attention(model.encoder, row, 0, AttentionQuery(10**6))
    assert (told["num_layers"], told["num_heads"]) == (2, 3)
    assert len(told["links"]) == wanted.numel()
    for layer, head, reader, read, weight in told["links"][:200]:
        assert weight == pytest.approx(wanted[layer, head, reader, read].item(), abs=1e-5)


def test_links_come_the_strongest_first_and_of_one_head_if_it_is_chosen(model):
    encoding, _ = tokenize_text(model.tokenizer, "a cat sat on the mat", None)
    row = truncate_encoding(encoding, model.encoder)
    every = attention(model.encoder, row, 0, AttentionQuery(10**6))["links"]
    weights = [link[4] for link in every]
    assert weights == sorted(weights, reverse=True)
    chosen = attention(model.encoder, row, 0, AttentionQuery(5, layer=1, head=2))["links"]
    assert chosen == [link for link in every if link[:2] == [1, 2]][:5]


def test_what_is_too_long_for_the_model_is_cut_and_counted(model):
    encoding, _ = tokenize_text(model.tokenizer, " ".join(["cat"] * 40), None)
    told = attention(model.encoder, truncate_encoding(encoding, model.encoder), 0, AttentionQuery(1))
    assert len(told["pieces"]) == 32
    assert told["cut"] == 10


@pytest.mark.parametrize("look", [AttentionQuery(1, layer=2), AttentionQuery(1, head=3)])
def test_a_layer_or_head_that_is_not_there_is_refused(look, model):
    encoding, _ = tokenize_text(model.tokenizer, "a cat", None)
    with pytest.raises(InputError, match="counted from 0"):
        attention(model.encoder, truncate_encoding(encoding, model.encoder), 0, look)
