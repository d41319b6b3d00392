"""Static vectors as an encoder: a word is its row of the table wherever it stands, a row of words is their mean."""

from __future__ import annotations

import pytest
import torch

from bertworks.encoders.families import ENCODERS
from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.static import static_config
from bertworks.errors import SettingsError
from bertworks.objectives.registry import check_objective
from bertworks.sampling.batch import Batch


def test_a_word_is_its_vector_wherever_it_stands_and_a_row_their_mean():
    encoder = ENCODERS["static"].build(static_config(6, 3), torch.Generator().manual_seed(0)).eval()
    table = encoder.token_embeddings.weight.detach()
    ids = torch.tensor([[2, 5, 4, 5], [5, 3, 0, 0]])
    found = encoder(Batch(ids, torch.zeros_like(ids), torch.tensor([4, 2])))
    (layer,) = found.hidden_states
    assert torch.equal(layer, table[[2, 5, 4, 5, 5, 3]])
    expected = torch.stack([table[[2, 5, 4, 5]].mean(0), table[[5, 3]].mean(0)])
    torch.testing.assert_close(found.pooled, expected)


def test_dropout_is_for_training_only_and_follows_the_seed():
    encoder = ENCODERS["static"].build(static_config(50, 40), torch.Generator().manual_seed(0))
    ids = torch.arange(5, 45)[None]
    batch = Batch(ids, torch.zeros_like(ids), torch.tensor([40]))
    seeds = DropoutSeeds(torch.tensor(7, dtype=torch.int32))
    dropped = encoder.train()(batch, seeds=seeds).last_hidden_state
    assert 0.05 < float((dropped == 0).float().mean()) < 0.15
    assert torch.equal(dropped, encoder(batch, seeds=seeds).last_hidden_state)
    assert torch.equal(encoder.eval()(batch, seeds=seeds).last_hidden_state, encoder.token_embeddings.weight[5:45])


def test_a_table_shows_no_attention_and_learns_by_no_objective():
    encoder = ENCODERS["static"].build(static_config(6, 3), None)
    assert not encoder.has_attention
    with pytest.raises(SettingsError, match="do not learn by a recipe: bertworks vectors train makes them"):
        check_objective("static", "mlm")


def test_sizes_have_names():
    assert ENCODERS["static"].config_from_preset("mini", 70).hidden_size == 100
    with pytest.raises(SettingsError, match="there is no size 'huge' of word vectors; choose one of: tiny, mini"):
        ENCODERS["static"].config_from_preset("huge", 70)
