"""Operations of a step, counted: a BERT that is asked everything, by hand; and what takes more, or as much again."""

import pytest
import torch

from bertworks.encoders.bert import Bert, BertConfig
from bertworks.objectives.causal import CausalLmObjective
from bertworks.sampling.batch import Batch
from bertworks.training.flops import count_flops

pytestmark = pytest.mark.usefixtures("one_thread")


def batch_of(rows: int, length: int, vocabulary: int) -> Batch:
    """Full rows that are asked at every place."""
    ids = torch.randint(1, vocabulary, (rows, length), generator=torch.Generator().manual_seed(1))
    places = torch.arange(rows * length)
    return Batch(ids, torch.zeros_like(ids), torch.full((rows,), length), None, places, ids.flatten())


@pytest.mark.parametrize("dropout", [0.1, 0.0])
def test_a_bert_of_one_layer_by_hand(dropout: float):
    """N pieces in rows of T; W = N + B places are computed in the last layer: those asked, and what sums a row up.

    Keys and values of N, queries and outputs of W, the inner network of W, attention of W to T, scores of N over V; on
    the way back twice that. The pooler is computed, but learns nothing.
    """
    vocabulary, width, inner, rows, length = 60, 32, 64, 3, 16
    sizes = BertConfig(
        vocabulary, width, 1, 4, inner, 32, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
    )
    module = CausalLmObjective(Bert(sizes, torch.Generator().manual_seed(0)))
    found = count_flops(module, [batch_of(rows, length, vocabulary)])
    pieces = rows * length
    wanted = pieces + rows
    attention = 4 * wanted * length * width
    products = 4 * pieces * width**2 + 4 * wanted * width**2 + 4 * wanted * width * inner
    scores = 2 * pieces * width * vocabulary
    assert found == 3 * (products + attention + scores) + 2 * rows * width**2


def test_a_second_batch_takes_as_much_again_and_nothing_is_changed():
    module = CausalLmObjective(Bert(BertConfig(60, 32, 2, 4, 64, 32), torch.Generator().manual_seed(0))).eval()
    before = {name: values.clone() for name, values in module.state_dict().items()}
    batch = batch_of(2, 8, 60)
    assert count_flops(module, [batch, batch]) == 2 * count_flops(module, [batch])
    assert not module.training_settings
    assert all(one.grad is None for one in module.parameters())
    assert all(values.equal(before[name]) for name, values in module.state_dict().items())
