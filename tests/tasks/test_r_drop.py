"""R-Drop: divergences by hand, and a loss that is the mean of two passes with other dropout, and their divergence."""

import math
from types import SimpleNamespace

import pytest
import torch
from small_models import CONFIG

from bertworks.encoders.bert import Bert
from bertworks.encoders.layers import DropoutSeeds
from bertworks.sampling.batch import Batch
from bertworks.tasks.classify import Classify
from bertworks.tasks.module import TaskModule

BATCH = Batch(
    input_ids=torch.tensor([[2, 6, 7, 3], [2, 8, 9, 3]]),
    token_type_ids=torch.zeros(2, 4, dtype=torch.long),
    lengths=torch.tensor([4, 4]),
    labels={"class": torch.tensor([0, 1])},
)
SEEDS = DropoutSeeds(torch.tensor(7, dtype=torch.int32))


def make_module(r_drop: float, dropout: float) -> TaskModule:
    generator = torch.Generator().manual_seed(0)
    encoder = Bert(CONFIG, generator)
    encoder.set_dropout(dropout)
    module = TaskModule(encoder, Classify(labels=("bad", "good")), generator, r_drop=r_drop)
    module.head.dropout = dropout
    return module.train()


def test_divergence_is_half_of_both_kl_divergences():
    task = Classify(labels=("a", "b"))
    outputs, others = torch.tensor([[math.log(3.0), 0.0]]), torch.tensor([[0.0, 0.0]])  # 3/4, 1/4 and 1/2, 1/2
    kl = 3 / 4 * math.log(3 / 2) + 1 / 4 * math.log(1 / 2)
    reverse = 1 / 2 * math.log(2 / 3) + 1 / 2 * math.log(2)
    batch = SimpleNamespace(groups=None)
    assert task.divergence(outputs, others, batch).item() == pytest.approx((kl + reverse) / 2)
    assert task.divergence(outputs, outputs, batch).item() == 0.0


def test_labels_that_are_independent_diverge_one_by_one():
    task = Classify(labels=("a", "b"), multi_label=True)
    outputs, others = torch.tensor([[math.log(3.0), 5.0]]), torch.tensor([[0.0, 5.0]])
    expected = (3 / 4 * math.log(3 / 2) + 1 / 4 * math.log(1 / 2) + 1 / 2 * math.log(2 / 3) + 1 / 2 * math.log(2)) / 2
    assert task.divergence(outputs, others, SimpleNamespace(groups=None)).item() == pytest.approx(expected / 2)


def test_windows_of_a_text_are_averaged_before_they_diverge():
    outputs, others = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.0, 2.0], [2.0, 0.0]])
    batch = SimpleNamespace(groups=torch.tensor([0, 0]))
    assert Classify(labels=("a", "b")).divergence(outputs, others, batch).item() == 0.0


def test_the_loss_is_the_mean_of_two_passes_and_their_weighted_divergence():
    module, scales = make_module(r_drop=3.0, dropout=0.4), {"task": 0.5}
    loss = module(BATCH, scales, SEEDS)
    first, second = module.outputs(BATCH, SEEDS), module.outputs(BATCH, DropoutSeeds(SEEDS.base + 2))
    assert not torch.equal(first, second)
    losses = [module.task.loss(outputs, BATCH) for outputs in (first, second)]
    expected = 0.5 * (sum(losses) + 3.0 * module.task.divergence(first, second, BATCH)) / 2
    torch.testing.assert_close(loss.value, expected)
    assert loss.parts["task"].total == losses[0]  # what is shown can be compared with other runs


def test_without_dropout_it_changes_nothing():
    losses = [make_module(r_drop, dropout=0.0)(BATCH, {"task": 0.5}, SEEDS).value for r_drop in (0.0, 2.0)]
    torch.testing.assert_close(losses[0], losses[1])
