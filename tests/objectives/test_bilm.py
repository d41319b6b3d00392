"""The next word and the one before: which half is asked what, its loss by torch's own softmax, scores of neighbours."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from bertworks.encoders.elmo import SOFTMAX_KINDS, Elmo, config_from_preset
from bertworks.errors import SettingsError
from bertworks.objectives.bilm import BiLmObjective, neighbor_log_probs
from bertworks.objectives.registry import check_objective
from bertworks.sampling.batch import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = replace(
    config_from_preset("tiny", 40),
    hidden_size=12,
    intermediate_size=10,
    filters=((1, 4), (2, 3)),
    max_position_embeddings=40,
    spelling="words",
)


@pytest.fixture
def module() -> BiLmObjective:
    generator = torch.Generator().manual_seed(0)
    return BiLmObjective(Elmo(SIZES, generator), generator).double()


def asked() -> Batch:
    """Two rows, 2 7 9 3 and 2 8 3, all places but the last asked what follows."""
    ids = torch.tensor([[2, 7, 9, 3], [2, 8, 3, 0]])
    places, targets = torch.tensor([0, 1, 2, 4, 5]), torch.tensor([7, 9, 3, 8, 3])
    return Batch(ids, torch.zeros_like(ids), torch.tensor([4, 3]), positions=places, targets=targets)


def test_the_loss_is_what_both_halves_say_of_their_neighbours(module: BiLmObjective):
    module.eval()
    batch = asked()
    with torch.no_grad():
        last = module.encoder(batch).to_padded()
        ahead, back = (module.bilm_head.log_prob(half.flatten(0, 1)).view(2, 4, -1) for half in last.chunk(2, -1))
        loss = module(batch, {"bilm": 0.1})
    rows = ([2, 7, 9, 3], [2, 8, 3])
    expected = -sum(
        ahead[row, place, ids[place + 1]] + back[row, place + 1, ids[place]]
        for row, ids in enumerate(rows)
        for place in range(len(ids) - 1)
    )
    torch.testing.assert_close(loss.parts["bilm"].total, expected)
    torch.testing.assert_close(loss.value, 0.1 * expected)
    assert loss.parts["bilm"].count == module.counts(batch)["bilm"] == 10
    assert loss.parts["bilm"].correct is not None


def test_scores_of_neighbours_are_a_distribution_over_all_words(module: BiLmObjective):
    module.eval()
    batch, places = asked(), torch.tensor([1, 5])
    with torch.no_grad():
        last = module.encoder(batch).gather(places)
        for backward, half in ((False, last[:, :6]), (True, last[:, 6:])):
            scores = neighbor_log_probs(module.encoder, module.bilm_head, batch, places, backward)
            assert scores.shape == (2, 40)
            torch.testing.assert_close(scores.exp().sum(1), torch.ones(2, dtype=torch.double))
            torch.testing.assert_close(scores, module.bilm_head.log_prob(half))


@pytest.mark.parametrize("scoring", SOFTMAX_KINDS)
def test_it_learns_a_row_by_heart(scoring: str):
    generator = torch.Generator().manual_seed(0)
    module = BiLmObjective(Elmo(replace(SIZES, softmax_kind=scoring), generator), generator).double()
    batch = asked()
    optimizer = torch.optim.Adam(module.parameters(), 0.02)
    for _ in range(60):
        optimizer.zero_grad()
        loss = module(batch, {"bilm": 0.1})
        loss.value.backward()
        optimizer.step()
    # Only what comes behind the first word, and before the last one, is a matter of chance: ln 2, twice in ten.
    assert float(loss.value.detach()) < 0.2 * 2 * math.log(2) + 0.1


def test_families_learn_only_by_objectives_they_have_heads_for():
    for family, objective in (("elmo", "bilm"), ("bert", "mlm-nsp"), ("bert", "causal"), ("openai-gpt", "causal")):
        check_objective(family, objective)
    with pytest.raises(
        SettingsError, match="family 'bert' cannot learn by the objective 'bilm'; choose one of: mlm"
    ):
        check_objective("bert", "bilm")
    with pytest.raises(SettingsError, match="family 'elmo' cannot learn by the objective 'mlm'"):
        check_objective("elmo", "mlm")
