"""Static vectors as an encoder: a word has its vector in any context, and a sequence the mean of its words."""

from __future__ import annotations

import pytest
import torch

from bertworks.encoders.families import ENCODERS
from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.static import StaticConfig
from bertworks.errors import SettingsError
from bertworks.objectives.registry import check_objective
from bertworks.sampling.batch import Batch


def test_hidden_states_are_the_word_vectors_and_the_pooled_output_their_mean():
    encoder = (
        ENCODERS["static"].build(StaticConfig(vocab_size=6, hidden_size=3), torch.Generator().manual_seed(0)).eval()
    )
    table = encoder.token_embeddings.weight.detach()
    input_ids = torch.tensor([[2, 5, 4, 5], [5, 3, 0, 0]])
    encoded = encoder(
        Batch(input_ids=input_ids, token_type_ids=torch.zeros_like(input_ids), lengths=torch.tensor([4, 2]))
    )
    (hidden_state,) = encoded.hidden_states
    assert torch.equal(hidden_state, table[[2, 5, 4, 5, 5, 3]])
    expected = torch.stack([table[[2, 5, 4, 5]].mean(0), table[[5, 3]].mean(0)])
    torch.testing.assert_close(encoded.pooled, expected)


def test_dropout_is_applied_in_training_only_and_follows_the_seed():
    encoder = ENCODERS["static"].build(StaticConfig(vocab_size=50, hidden_size=40), torch.Generator().manual_seed(0))
    input_ids = torch.arange(5, 45)[None]
    batch = Batch(input_ids=input_ids, token_type_ids=torch.zeros_like(input_ids), lengths=torch.tensor([40]))
    seeds = DropoutSeeds(torch.tensor(7, dtype=torch.int32))
    dropped = encoder.train()(batch, seeds=seeds).last_hidden_state
    assert 0.05 < float((dropped == 0).float().mean()) < 0.15
    assert torch.equal(dropped, encoder(batch, seeds=seeds).last_hidden_state)
    assert torch.equal(encoder.eval()(batch, seeds=seeds).last_hidden_state, encoder.token_embeddings.weight[5:45])


def test_static_vectors_have_no_attention_weights_and_no_objective():
    encoder = ENCODERS["static"].build(StaticConfig(vocab_size=6, hidden_size=3), None)
    assert not encoder.has_attention
    with pytest.raises(
        SettingsError, match="has no pretraining objective; train it with `bertworks word-vectors train`"
    ):
        check_objective("static", "mlm")


def test_presets_are_found_by_name():
    assert ENCODERS["static"].config_from_preset("mini", 70).hidden_size == 100
    with pytest.raises(
        SettingsError, match="there is no size 'huge' of the family 'static'; choose one of: tiny, mini"
    ):
        ENCODERS["static"].config_from_preset("huge", 70)
