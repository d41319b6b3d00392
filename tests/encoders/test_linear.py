"""Linear layers by each library against plain torch: values and gradients, also of some rows of a weight."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from bertworks.encoders import linear
from bertworks.encoders.linear import apply_linear

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=[True, False], ids=["oneDNN", "MKL"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both libraries compute on any processor; only their speed differs. oneDNN refuses bf16 on old processors."""
    has_bf16 = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    monkeypatch.setattr(linear, "_has_onednn", lambda dtype: request.param and (dtype == torch.float32 or has_bf16))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("rows", [None, slice(16), slice(16, None)], ids=["all", "first", "others"])
@pytest.mark.parametrize("count", [0, 1, 37])
def test_values_and_gradients_equal_plain_torch(rows: slice | None, count: int):
    torch.manual_seed(0)
    module, values = nn.Linear(24, 40), torch.randn(count, 24, requires_grad=True)
    selected = slice(None) if rows is None else rows
    expected = values @ module.weight[selected].t() + module.bias[selected]
    grad_output = torch.randn_like(expected)
    tensors = (values, module.weight, module.bias)
    expected_grads = torch.autograd.grad(expected, tensors, grad_output)
    result = apply_linear(values, module, rows)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)
    for grad, expected_grad in zip(torch.autograd.grad(result, tensors, grad_output), expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(apply_linear(values, module, rows), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("rows", [None, slice(16)], ids=["all", "first"])
def test_a_linear_layer_may_have_no_bias(rows: slice | None):
    torch.manual_seed(0)
    module, values, residual = nn.Linear(24, 40, bias=False), torch.randn(7, 24), torch.randn(7, 40)
    expected = values @ module.weight[slice(None) if rows is None else rows].t()
    result = apply_linear(values, module, rows)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)
    grads = [torch.autograd.grad(output.square().sum(), module.weight)[0] for output in (result, expected)]
    torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-4)
    with torch.inference_mode():
        torch.testing.assert_close(apply_linear(values, module, rows), expected.detach(), rtol=1e-5, atol=1e-6)
        added = linear.fused_linear(values, module, residual)
        torch.testing.assert_close(added, (values @ module.weight.t()).detach() + residual, rtol=1e-5, atol=1e-6)


def test_double_precision_is_kept():
    module, values = nn.Linear(3, 2).double(), torch.randn(4, 3, dtype=torch.float64)
    assert (apply_linear(values, module) - (values @ module.weight.t() + module.bias)).abs().max() < 1e-12


def test_fused_linear_layers_equal_plain_torch_and_follow_changed_weights(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(linear, "_has_onednn", lambda dtype: True)
    torch.manual_seed(0)
    module, values, residual = nn.Linear(24, 40), torch.randn(7, 24), torch.randn(7, 40)
    for _ in range(2):
        plain = values @ module.weight.t() + module.bias
        with torch.inference_mode():
            assert linear.can_fuse(values)
            torch.testing.assert_close(apply_linear(values, module), plain.detach(), rtol=1e-5, atol=1e-6)
            with_gelu = linear.fused_linear(values, module, activation="gelu")
            torch.testing.assert_close(with_gelu, nn.functional.gelu(plain.detach()), rtol=1e-5, atol=1e-6)
            added = linear.fused_linear(values, module, residual)
            torch.testing.assert_close(added, plain.detach() + residual, rtol=1e-5, atol=1e-6)
        with torch.no_grad():
            module.weight.mul_(2.0)  # as an optimizer does, in place


def test_nothing_is_fused_where_gradients_are_needed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(linear, "_has_onednn", lambda dtype: True)
    assert not linear.can_fuse(torch.randn(2, 3))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("rows", [None, slice(16)], ids=["all", "first"])
def test_under_autocast_values_are_bf16_and_gradients_have_the_dtypes_of_their_tensors(rows: slice | None):
    torch.manual_seed(0)
    module, values = nn.Linear(24, 40), torch.randn(37, 24, requires_grad=True)
    exact = apply_linear(values, module, rows)
    grad_output = torch.randn_like(exact)
    tensors = (values, module.weight, module.bias)
    expected_grads = torch.autograd.grad(exact, tensors, grad_output)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = apply_linear(values, module, rows)
        with torch.inference_mode():
            fused = apply_linear(values, module, rows)
    assert rounded.dtype == fused.dtype == torch.bfloat16
    grads = torch.autograd.grad(rounded, tensors, grad_output.bfloat16())
    assert {grad.dtype for grad in grads} == {torch.float32}
    # Operands are rounded to 8 significant bits, sums are not: the error of a sum is far below one unit in the last
    # place of its largest summand.
    exact = exact.detach()
    for value, expected in zip((rounded.detach(), fused, *grads), (exact, exact, *expected_grads), strict=True):
        assert float((value.float() - expected).norm()) < 2**-7 * float(expected.norm())


def test_a_weight_is_cast_once_for_each_of_its_versions():
    module = nn.Linear(3, 2)
    first = linear.cast_weight(module.weight, torch.bfloat16)
    assert linear.cast_weight(module.weight, torch.bfloat16) is first
    with torch.no_grad():
        module.weight.mul_(2.0)
    second = linear.cast_weight(module.weight, torch.bfloat16)
    assert second is not first
    assert torch.equal(second, 2 * first)
    assert linear.cast_weight(module.weight, torch.float16).dtype == torch.float16


def test_a_weight_that_was_cast_in_evaluation_can_be_trained():
    module, values = nn.Linear(3, 2), torch.randn(4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.inference_mode():
            apply_linear(values, module, slice(1))
            linear.cast_weight(module.weight, torch.bfloat16)
        apply_linear(values, module).sum().backward()
    assert module.weight.grad is not None


def test_batches_of_many_sizes_do_not_fill_the_memory():
    script = """
import torch
from bertworks.encoders.linear import apply_linear
from torch import nn

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

module, values, sizes = nn.Linear(256, 1024), torch.randn(900, 256), []
with torch.inference_mode():
    for number in range(100, 900):
        apply_linear(values[:number], module)
        if number in (499, 899):  # the first 400 sizes fill the cache
            sizes.append(resident())
print(sizes[1] - sizes[0])
"""
    growth = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert float(growth) < 40  # MiB for 400 sizes; with an unlimited cache it is about 220
