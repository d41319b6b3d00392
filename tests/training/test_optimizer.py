"""The optimizer: equal to torch's AdamW and to Adam of Google's BERT; its state is saved and restored exactly."""

import math

import pytest
import torch
from torch import nn

from bertworks.errors import FolderError
from bertworks.training.optimizer import AdamSettings, BertAdam

LEARNING_RATES = (1e-2, 3e-2, 0.0, 2e-2, 1e-2, 5e-3)


pytestmark = pytest.mark.usefixtures("one_thread")


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Two linears and a norm, with biases that are not zero, so that weight decay would change them."""
    module = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)).to(dtype)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0.5, 0.5, generator=generator)
    return module


def set_gradients(module: nn.Module, step: int, size: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in module.parameters():
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.grad = (size * values).to(parameter.dtype)


def max_difference(left: nn.Module, right: nn.Module) -> float:
    pairs = zip(left.parameters(), right.parameters(), strict=True)
    return max(float((ours - theirs).detach().abs().max()) for ours, theirs in pairs)


# Gradients far above, about and far below the norm 1 at which they are clipped.
@pytest.mark.parametrize("size", [10.0, 0.1, 1e-3])
def test_each_step_equals_adamw_of_torch_with_gradient_clipping(size: float):
    ours, theirs = network(), network()
    optimizer = BertAdam(ours, AdamSettings(eps=1e-6, weight_decay=0.1))
    groups = [
        {"params": [parameter for parameter in theirs.parameters() if parameter.ndim > 1], "weight_decay": 0.1},
        {"params": [parameter for parameter in theirs.parameters() if parameter.ndim == 1], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, betas=(0.9, 0.999), eps=1e-6)
    for number, learning_rate in enumerate(LEARNING_RATES):
        set_gradients(ours, number, size)
        set_gradients(theirs, number, size)
        norm = float(nn.utils.clip_grad_norm_(theirs.parameters(), 1.0))
        for group in reference.param_groups:
            group["lr"] = learning_rate
        reference.step()
        assert abs(optimizer.step(learning_rate) - norm) < 1e-12
        # torch clips by norm + 1e-6 and we by the norm: a millionth of updates of about the learning rate.
        assert max_difference(ours, theirs) < 1e-6 * sum(LEARNING_RATES[: number + 1])


def test_without_bias_correction_each_step_is_that_of_googles_bert():
    ours, theirs = network(), network()
    settings = AdamSettings(weight_decay=0.1, clip=0.0, bias_correction=False)
    optimizer = BertAdam(ours, settings)
    moments = [(torch.zeros_like(parameter), torch.zeros_like(parameter)) for parameter in theirs.parameters()]
    for number, learning_rate in enumerate(LEARNING_RATES):
        set_gradients(ours, number)
        set_gradients(theirs, number)
        optimizer.step(learning_rate)
        with torch.no_grad():
            for parameter, (mean, square) in zip(theirs.parameters(), moments, strict=True):
                assert parameter.grad is not None
                mean.mul_(0.9).add_(0.1 * parameter.grad)
                square.mul_(0.999).add_(0.001 * parameter.grad**2)
                update = mean / (square.sqrt() + settings.eps)
                if parameter.ndim > 1:
                    update = update + 0.1 * parameter
                parameter -= learning_rate * update
        assert max_difference(ours, theirs) < 1e-12


def test_the_first_step_by_hand():
    """Gradient 2, lr 0.1. Corrected: m = 2, v = 4, so the step is 0.1. BERT's: m = 0.2, v = 0.004, so 0.1 * √10."""
    for bias_correction, step in ((True, 0.1), (False, 0.1 * math.sqrt(10))):
        module = nn.Linear(1, 1, bias=False).double()
        nn.init.constant_(module.weight, 5.0)
        module.weight.grad = torch.full((1, 1), 2.0, dtype=torch.float64)
        settings = AdamSettings(eps=1e-12, weight_decay=0.0, clip=0.0, bias_correction=bias_correction)
        BertAdam(module, settings).step(0.1)
        assert abs(float(module.weight.detach()) - (5.0 - step)) < 1e-9


def test_biases_and_norms_have_no_weight_decay():
    module = network()
    before = [parameter.detach().clone() for parameter in module.parameters()]
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    BertAdam(module, AdamSettings(weight_decay=0.1)).step(0.5)
    for parameter, old in zip(module.parameters(), before, strict=True):
        expected = old * (1 - 0.5 * 0.1) if parameter.ndim > 1 else old
        assert torch.allclose(parameter.detach(), expected, rtol=0, atol=1e-15)


def test_a_step_returns_the_norm_before_clipping_and_clears_gradients():
    module = nn.Linear(2, 1)
    module.weight.grad, module.bias.grad = torch.tensor([[3.0, 0.0]]), torch.tensor([4.0])
    assert BertAdam(module, AdamSettings(clip=1.0)).step(1e-3) == 5.0
    assert module.weight.grad is None
    assert module.bias.grad is None


@pytest.mark.parametrize(("clip", "mean"), [(1.0, 0.1 * 3 / 5), (0.0, 0.1 * 3), (9.0, 0.1 * 3)])
def test_gradients_are_clipped_to_the_set_norm_and_not_at_all_with_zero(clip: float, mean: float):
    module = nn.Linear(2, 1).double()
    module.weight.grad = torch.tensor([[3.0, 0.0]], dtype=torch.float64)
    module.bias.grad = torch.tensor([4.0], dtype=torch.float64)
    optimizer = BertAdam(module, AdamSettings(clip=clip))
    optimizer.step(1e-3)
    assert abs(float(optimizer.state()["exp_avg/weight"][0, 0]) - mean) < 1e-15


@pytest.mark.parametrize("bias_correction", [True, False])
def test_a_restored_optimizer_continues_bit_identically(bias_correction: bool):
    settings = AdamSettings(bias_correction=bias_correction)
    full, first = network(torch.float32), network(torch.float32)
    full_optimizer, first_optimizer = BertAdam(full, settings), BertAdam(first, settings)
    for number in range(3):
        set_gradients(full, number)
        set_gradients(first, number)
        full_optimizer.step(1e-2)
        first_optimizer.step(1e-2)
    state = {name: values.clone() for name, values in first_optimizer.state().items()}
    second = network(torch.float32)
    second.load_state_dict(first.state_dict())
    resumed = BertAdam(second, settings)
    resumed.restore(state, 3)
    for number in range(3, 6):
        set_gradients(full, number)
        set_gradients(second, number)
        assert full_optimizer.step(1e-2) == resumed.step(1e-2)
    assert all(torch.equal(values, second.state_dict()[name]) for name, values in full.state_dict().items())
    assert full_optimizer.state().keys() == resumed.state().keys()
    assert all(torch.equal(values, resumed.state()[name]) for name, values in full_optimizer.state().items())


def test_restoring_copies_the_tensors():
    module = nn.Linear(2, 1, bias=False)
    state = {"exp_avg/weight": torch.ones(1, 2), "exp_avg_sq/weight": torch.ones(1, 2)}
    optimizer = BertAdam(module, AdamSettings())
    optimizer.restore(state, 1)
    module.weight.grad = torch.ones(1, 2) * 9
    optimizer.step(0.1)
    assert state["exp_avg/weight"].tolist() == [[1.0, 1.0]]


def test_state_is_named_by_parameters_without_frozen_ones():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    module[0].requires_grad_(False)
    optimizer = BertAdam(module, AdamSettings())
    assert optimizer.state() == {}
    set_gradients(module[1], 0)
    optimizer.step(0.1)
    assert set(optimizer.state()) == {"exp_avg/1.weight", "exp_avg_sq/1.weight", "exp_avg/1.bias", "exp_avg_sq/1.bias"}


@pytest.mark.parametrize("missing", ["exp_avg/bias", "exp_avg_sq/weight"])
def test_missing_state_is_named(missing: str):
    module = nn.Linear(2, 1)
    state = {
        f"{moment}/{name}": parameter.detach()
        for moment in ("exp_avg", "exp_avg_sq")
        for name, parameter in module.named_parameters()
    }
    del state[missing]
    with pytest.raises(
        FolderError, match=f"the checkpoint has no optimizer state '{missing}'; it belongs to another recipe"
    ):
        BertAdam(module, AdamSettings()).restore(state, 4)


def test_state_of_another_shape_is_named():
    state = {"exp_avg/weight": torch.ones(1, 3), "exp_avg_sq/weight": torch.ones(1, 2)}
    with pytest.raises(FolderError, match=r"\(1, 3\) instead of \(1, 2\) as optimizer state 'exp_avg/weight'"):
        BertAdam(nn.Linear(2, 1, bias=False), AdamSettings()).restore(state, 4)


def test_before_the_first_step_there_is_nothing_to_restore():
    optimizer = BertAdam(nn.Linear(2, 1), AdamSettings())
    optimizer.restore({}, 0)
    assert optimizer.num_steps == 0
    assert optimizer.state() == {}


def test_a_step_increments_the_versions_of_parameters():
    """Packed copies of weights are invalidated by version."""
    module = network(torch.float32)
    set_gradients(module, 0)
    before = [parameter._version for parameter in module.parameters()]
    BertAdam(module, AdamSettings()).step(1e-2)
    assert all(parameter._version > version for parameter, version in zip(module.parameters(), before, strict=True))
