"""The bidirectional LM: what each direction predicts, the loss by torch's own softmax, probabilities of neighbors."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from bertworks.encoders.elmo import SOFTMAX_KINDS, Elmo, ElmoConfig
from bertworks.objectives.bilm import BiLmModule, neighbor_log_probs
from bertworks.sampling.batch import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
CONFIG = ElmoConfig(
    vocab_size=40, hidden_size=12, lstm_size=10, filters=((1, 4), (2, 3)), max_length=40, spelling="words"
)


@pytest.fixture
def module() -> BiLmModule:
    generator = torch.Generator().manual_seed(0)
    return BiLmModule(Elmo(CONFIG, generator), generator).double()


def make_batch() -> Batch:
    """Two sequences, 2 7 9 3 and 2 8 3, in which all positions but the last predict the next word."""
    input_ids = torch.tensor([[2, 7, 9, 3], [2, 8, 3, 0]])
    return Batch(
        input_ids=input_ids,
        token_type_ids=torch.zeros_like(input_ids),
        lengths=torch.tensor([4, 3]),
        positions=torch.tensor([0, 1, 2, 4, 5]),
        targets=torch.tensor([7, 9, 3, 8, 3]),
    )


def test_the_loss_is_the_cross_entropy_of_next_and_previous_words(module: BiLmModule):
    module.eval()
    batch = make_batch()
    with torch.no_grad():
        states = module.encoder(batch).to_padded()
        forward, backward = (
            module.bilm_head.log_prob(direction.flatten(0, 1)).view(2, 4, -1) for direction in states.chunk(2, -1)
        )
        loss = module(batch, {"bilm": 0.1})
    expected = -sum(
        forward[sequence, position, words[position + 1]] + backward[sequence, position + 1, words[position]]
        for sequence, words in enumerate(([2, 7, 9, 3], [2, 8, 3]))
        for position in range(len(words) - 1)
    )
    torch.testing.assert_close(loss.parts["bilm"].total, expected)
    torch.testing.assert_close(loss.value, 0.1 * expected)
    assert loss.parts["bilm"].count == module.counts(batch)["bilm"] == 10
    assert loss.parts["bilm"].correct is not None


def test_neighbor_probabilities_are_a_distribution_over_all_words(module: BiLmModule):
    module.eval()
    batch, positions = make_batch(), torch.tensor([1, 5])
    with torch.no_grad():
        states = module.encoder(batch).gather(positions)
        for is_backward, direction in ((False, states[:, :6]), (True, states[:, 6:])):
            log_probs = neighbor_log_probs(module.encoder, module.bilm_head, batch, positions, is_backward)
            assert log_probs.shape == (2, 40)
            torch.testing.assert_close(log_probs.exp().sum(1), torch.ones(2, dtype=torch.double))
            torch.testing.assert_close(log_probs, module.bilm_head.log_prob(direction))


@pytest.mark.parametrize("softmax_kind", SOFTMAX_KINDS)
def test_two_sequences_are_memorized(softmax_kind: str):
    generator = torch.Generator().manual_seed(0)
    module = BiLmModule(Elmo(replace(CONFIG, softmax_kind=softmax_kind), generator), generator).double()
    batch = make_batch()
    optimizer = torch.optim.Adam(module.parameters(), 0.02)
    for _ in range(60):
        optimizer.zero_grad()
        loss = module(batch, {"bilm": 0.1})
        loss.value.backward()
        optimizer.step()
    # Only the word after the first one and the word before the last one are random: ln 2, twice in ten.
    assert float(loss.value.detach()) < 0.2 * 2 * math.log(2) + 0.1
