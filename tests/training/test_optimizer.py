"""The optimizer against torch's AdamW and against BERT's own Adam written out; its state, kept and taken up again."""

import math

import pytest
import torch
from torch import nn

from bertworks.errors import FolderError
from bertworks.training.optimizer import AdamSettings, BertAdam

RATES = (1e-2, 3e-2, 0.0, 2e-2, 1e-2, 5e-3)


pytestmark = pytest.mark.usefixtures("one_thread")


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """A table, a norm and a product, with biases that are not zero: so decay would be seen."""
    module = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)).to(dtype)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0.5, 0.5, generator=generator)
    return module


def give_gradients(module: nn.Module, step: int, size: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in module.parameters():
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.grad = (size * drawn).to(parameter.dtype)


def farthest(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((ours - theirs).detach().abs().max()) for ours, theirs in pairs)


# Gradients far above, about and far below the norm 1 at which they are clipped.
@pytest.mark.parametrize("size", [10.0, 0.1, 1e-3])
def test_each_step_equals_adamw_of_torch_after_its_clipping(size: float):
    ours, theirs = network(), network()
    optimizer = BertAdam(ours, AdamSettings(eps=1e-6, weight_decay=0.1))
    groups = [
        {"params": [one for one in theirs.parameters() if one.ndim > 1], "weight_decay": 0.1},
        {"params": [one for one in theirs.parameters() if one.ndim == 1], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, betas=(0.9, 0.999), eps=1e-6)
    for number, rate in enumerate(RATES):
        give_gradients(ours, number, size)
        give_gradients(theirs, number, size)
        norm = float(nn.utils.clip_grad_norm_(theirs.parameters(), 1.0))
        for group in reference.param_groups:
            group["lr"] = rate
        reference.step()
        assert abs(optimizer.step(rate) - norm) < 1e-12
        # To clip, torch divides by norm + 1e-6 and we by the norm: a millionth of updates of about the rate.
        assert farthest(ours, theirs) < 1e-6 * sum(RATES[: number + 1])


def test_without_bias_correction_each_step_is_that_of_bert():
    ours, theirs = network(), network()
    settings = AdamSettings(weight_decay=0.1, clip=0.0, bias_correction=False)
    optimizer = BertAdam(ours, settings)
    moments = [(torch.zeros_like(one), torch.zeros_like(one)) for one in theirs.parameters()]
    for number, rate in enumerate(RATES):
        give_gradients(ours, number)
        give_gradients(theirs, number)
        optimizer.step(rate)
        with torch.no_grad():
            for one, (mean, square) in zip(theirs.parameters(), moments, strict=True):
                assert one.grad is not None
                mean.mul_(0.9).add_(0.1 * one.grad)
                square.mul_(0.999).add_(0.001 * one.grad**2)
                update = mean / (square.sqrt() + settings.eps)
                if one.ndim > 1:
                    update = update + 0.1 * one
                one -= rate * update
        assert farthest(ours, theirs) < 1e-12


def test_the_first_step_by_hand():
    """Slope 2, rate 0.1. Corrected: m = 2, v = 4, so the step is 0.1. BERT's: m = 0.2, v = 0.004, so 0.1 * √10."""
    for correction, step in ((True, 0.1), (False, 0.1 * math.sqrt(10))):
        module = nn.Linear(1, 1, bias=False).double()
        nn.init.constant_(module.weight, 5.0)
        module.weight.grad = torch.full((1, 1), 2.0, dtype=torch.float64)
        settings = AdamSettings(eps=1e-12, weight_decay=0.0, clip=0.0, bias_correction=correction)
        BertAdam(module, settings).step(0.1)
        assert abs(float(module.weight.detach()) - (5.0 - step)) < 1e-9


def test_biases_and_norms_do_not_decay():
    module = network()
    before = [one.detach().clone() for one in module.parameters()]
    for one in module.parameters():
        one.grad = torch.zeros_like(one)
    BertAdam(module, AdamSettings(weight_decay=0.1)).step(0.5)
    for one, was in zip(module.parameters(), before, strict=True):
        expected = was * (1 - 0.5 * 0.1) if one.ndim > 1 else was
        assert torch.allclose(one.detach(), expected, rtol=0, atol=1e-15)


def test_the_norm_returned_is_that_before_clipping_and_gradients_are_forgotten():
    module = nn.Linear(2, 1)
    module.weight.grad, module.bias.grad = torch.tensor([[3.0, 0.0]]), torch.tensor([4.0])
    assert BertAdam(module, AdamSettings(clip=1.0)).step(1e-3) == 5.0
    assert module.weight.grad is None
    assert module.bias.grad is None


@pytest.mark.parametrize(("clip", "mean"), [(1.0, 0.1 * 3 / 5), (0.0, 0.1 * 3), (9.0, 0.1 * 3)])
def test_gradients_are_clipped_to_the_norm_that_is_set_and_not_at_all_with_zero(clip: float, mean: float):
    module = nn.Linear(2, 1).double()
    module.weight.grad = torch.tensor([[3.0, 0.0]], dtype=torch.float64)
    module.bias.grad = torch.tensor([4.0], dtype=torch.float64)
    optimizer = BertAdam(module, AdamSettings(clip=clip))
    optimizer.step(1e-3)
    assert abs(float(optimizer.state()["mean/weight"][0, 0]) - mean) < 1e-15


@pytest.mark.parametrize("correction", [True, False])
def test_a_restored_optimizer_goes_on_to_the_bit(correction: bool):
    settings = AdamSettings(bias_correction=correction)
    whole, first = network(torch.float32), network(torch.float32)
    one, other = BertAdam(whole, settings), BertAdam(first, settings)
    for number in range(3):
        give_gradients(whole, number)
        give_gradients(first, number)
        one.step(1e-2)
        other.step(1e-2)
    kept = {name: values.clone() for name, values in other.state().items()}
    second = network(torch.float32)
    second.load_state_dict(first.state_dict())
    resumed = BertAdam(second, settings)
    resumed.restore(kept, 3)
    for number in range(3, 6):
        give_gradients(whole, number)
        give_gradients(second, number)
        assert one.step(1e-2) == resumed.step(1e-2)
    assert all(torch.equal(values, second.state_dict()[name]) for name, values in whole.state_dict().items())
    assert one.state().keys() == resumed.state().keys()
    assert all(torch.equal(values, resumed.state()[name]) for name, values in one.state().items())


def test_restoring_copies_so_that_what_was_read_stays_as_it_was():
    module = nn.Linear(2, 1, bias=False)
    kept = {"mean/weight": torch.ones(1, 2), "square/weight": torch.ones(1, 2)}
    optimizer = BertAdam(module, AdamSettings())
    optimizer.restore(kept, 1)
    module.weight.grad = torch.ones(1, 2) * 9
    optimizer.step(0.1)
    assert kept["mean/weight"].tolist() == [[1.0, 1.0]]


def test_state_is_named_by_the_parameters_and_leaves_out_frozen_ones():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    module[0].requires_grad_(False)
    optimizer = BertAdam(module, AdamSettings())
    assert optimizer.state() == {}
    give_gradients(module[1], 0)
    optimizer.step(0.1)
    assert set(optimizer.state()) == {"mean/1.weight", "square/1.weight", "mean/1.bias", "square/1.bias"}


@pytest.mark.parametrize("missing", ["mean/bias", "square/weight"])
def test_missing_state_is_named(missing: str):
    module = nn.Linear(2, 1)
    kept = {f"{kind}/{name}": one.detach() for kind in ("mean", "square") for name, one in module.named_parameters()}
    del kept[missing]
    with pytest.raises(
        FolderError, match=f"the checkpoint has no optimizer state '{missing}'; it is of another recipe"
    ):
        BertAdam(module, AdamSettings()).restore(kept, 4)


def test_state_of_another_shape_is_named():
    kept = {"mean/weight": torch.ones(1, 3), "square/weight": torch.ones(1, 2)}
    with pytest.raises(FolderError, match=r"\(1, 3\) instead of \(1, 2\) as optimizer state 'mean/weight'"):
        BertAdam(nn.Linear(2, 1, bias=False), AdamSettings()).restore(kept, 4)


def test_before_the_first_step_there_is_nothing_to_restore():
    optimizer = BertAdam(nn.Linear(2, 1), AdamSettings())
    optimizer.restore({}, 0)
    assert optimizer.num_steps == 0
    assert optimizer.state() == {}


def test_a_step_tells_that_the_parameters_changed():
    """Whoever keeps something made of a weight, as products do, looks at its version."""
    module = network(torch.float32)
    give_gradients(module, 0)
    before = [parameter._version for parameter in module.parameters()]
    BertAdam(module, AdamSettings()).step(1e-2)
    assert all(one._version > version for one, version in zip(module.parameters(), before, strict=True))
