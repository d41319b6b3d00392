"""The average of weights: its values by hand, an exact swap, and what a checkpoint holds of it."""

import contextlib

import pytest
import torch
from torch import nn

from bertworks.errors import FolderError
from bertworks.training.ema import WeightAverage, averaged_weights, decay_at, use_averaged_weights
from bertworks.training.optimizer import AdamSettings, BertAdam


def test_decay_grows_to_its_value():
    assert [decay_at(0.5, num_steps) for num_steps in (1, 2, 7, 8, 1_000)] == pytest.approx(
        [2 / 11, 3 / 12, 8 / 17, 0.5, 0.5]
    )


def test_average_by_hand():
    """Weights 1, then 12 and 4: 2/11 * 1 + 9/11 * 12 = 10, then 1/4 * 10 + 3/4 * 4 = 5.5."""
    weights = torch.tensor([1.0])
    average = WeightAverage({"w": weights}, 0.9)
    for num_steps, value in ((1, 12.0), (2, 4.0)):
        weights.fill_(value)
        average.update(num_steps)
    assert float(average.state()["ema/w"]) == pytest.approx(5.5)
    assert float(weights) == 4.0


def test_averaged_weights_are_used_inside_the_block_only():
    module = nn.Linear(3, 3)
    optimizer = BertAdam(module, AdamSettings(), ema_decay=0.9)
    for _ in range(3):
        module(torch.ones(2, 3)).square().sum().backward()
        optimizer.step(1e-2)
    weights = {name: values.clone() for name, values in module.state_dict().items()}
    averages = {name: values.clone() for name, values in optimizer.state().items() if name.startswith("ema/")}
    with contextlib.suppress(KeyboardInterrupt), use_averaged_weights(module, optimizer.weight_average):
        assert all(torch.equal(values, averages[f"ema/{name}"]) for name, values in module.state_dict().items())
        assert not torch.equal(module.weight, weights["weight"])
        raise KeyboardInterrupt
    assert all(torch.equal(values, weights[name]) for name, values in module.state_dict().items())
    assert all(torch.equal(values, averages[name]) for name, values in optimizer.state().items() if name in averages)


def test_step_that_overflows_does_not_change_the_average():
    module = nn.Linear(2, 1)
    optimizer = BertAdam(module, AdamSettings(), ema_decay=0.9)
    before = {name: values.clone() for name, values in optimizer.state().items()}
    module.weight.grad = torch.full_like(module.weight, float("inf"))
    optimizer.step(1e-2, scale=2.0)
    assert all(torch.equal(values, before[name]) for name, values in optimizer.state().items())


def test_without_decay_there_is_no_average():
    module = nn.Linear(2, 1)
    optimizer = BertAdam(module, AdamSettings())
    assert optimizer.weight_average is None
    assert optimizer.state() == {}
    with use_averaged_weights(module, None):
        pass


def test_averages_replace_the_weights_of_a_checkpoint():
    model = {"a": torch.tensor(1.0), "frozen": torch.tensor(2.0)}
    tensors = averaged_weights(model, {"ema/a": torch.tensor(3.0), "exp_avg/a": torch.tensor(4.0)})
    assert {name: float(values) for name, values in tensors.items()} == {"a": 3.0, "frozen": 2.0}
    assert averaged_weights(model, {}) == model


def test_checkpoint_without_the_average_is_refused():
    average = WeightAverage({"w": torch.zeros(2)}, 0.9)
    with pytest.raises(FolderError, match="the checkpoint has no average of 'w'"):
        average.restore({"exp_avg/w": torch.zeros(2)})
