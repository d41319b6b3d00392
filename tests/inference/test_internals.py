"""Attention weights and hidden states of a text: parity with transformers, and the parts of a TextAttention."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from small_models import write_pretrained

from bertworks.errors import InputError
from bertworks.inference.internals import TextAttention, attention_of, hidden_states_of
from bertworks.inference.model import load

pytestmark = pytest.mark.usefixtures("one_thread")


def test_hidden_states_and_attention_equal_those_of_transformers(tmp_path: Path):
    model = load(write_pretrained(tmp_path / "model"), precision="fp32")
    reference = transformers.BertModel.from_pretrained(tmp_path / "model", attn_implementation="eager")
    encoding = model.tokenizer.encode("the cats", "in paris")
    with torch.inference_mode():
        output = reference(
            torch.tensor([encoding.input_ids]),
            token_type_ids=torch.tensor([encoding.token_type_ids]),
            output_hidden_states=True,
            output_attentions=True,
        )
    states = hidden_states_of(model.encoder, model.tokenizer, "the cats", "in paris")
    for state, expected in zip(states, output.hidden_states, strict=True):
        np.testing.assert_allclose(state, expected[0], atol=1e-5)
    attention = attention_of(model.encoder, model.tokenizer, "the cats", "in paris")
    np.testing.assert_allclose(attention.weights, torch.cat(output.attentions), atol=1e-5)
    assert attention.tokens == encoding.tokens


def test_a_head_is_chosen_by_its_indices():
    attention = TextAttention(("a", "b"), np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2))
    assert attention.head(1, 2).tolist() == [[20, 21], [22, 23]]
    assert attention.to_dict()["weights"][1][2] == [[20, 21], [22, 23]]
    assert repr(attention) == "TextAttention(2 layers, 3 heads, 2 tokens: a b)"
    with pytest.raises(
        InputError, match="there is no head 3 in layer 1; layers are from 0 to 1, and heads from 0 to 2"
    ):
        attention.head(1, 3)
