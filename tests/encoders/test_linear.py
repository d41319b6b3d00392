"""A product with its library of choice against the plain one: values and slopes, also of some rows of a weight."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from bertworks.encoders import linear as products
from bertworks.encoders.linear import apply_linear

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=[True, False], ids=["oneDNN", "MKL"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both libraries compute on any processor; only their speed differs."""
    monkeypatch.setattr(products, "_has_onednn", lambda: request.param)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("rows", [slice(None), slice(16), slice(16, None)], ids=["all", "first", "others"])
@pytest.mark.parametrize("count", [0, 1, 37])
def test_a_product_and_its_slopes_are_those_of_plain_torch(rows: slice, count: int):
    torch.manual_seed(0)
    part, values = nn.Linear(24, 40), torch.randn(count, 24, requires_grad=True)
    slopes = torch.randn_like(values @ part.weight[rows].t())
    tensors = (values, part.weight, part.bias)
    expected = values @ part.weight[rows].t() + part.bias[rows]
    expected_slopes = torch.autograd.grad(expected, tensors, slopes)
    found = apply_linear(values, part, rows)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    for own, wanted in zip(torch.autograd.grad(found, tensors, slopes), expected_slopes, strict=True):
        torch.testing.assert_close(own, wanted, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(apply_linear(values, part, rows), expected, rtol=1e-5, atol=1e-6)


def test_double_precision_stays_double():
    part, values = nn.Linear(3, 2).double(), torch.randn(4, 3, dtype=torch.float64)
    assert (apply_linear(values, part) - (values @ part.weight.t() + part.bias)).abs().max() < 1e-12


def test_a_product_takes_along_what_follows_it_and_sees_weights_that_change(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(products, "_has_onednn", lambda: True)
    torch.manual_seed(0)
    part, values, residual = nn.Linear(24, 40), torch.randn(7, 24), torch.randn(7, 40)
    for _ in range(2):
        plain = values @ part.weight.t() + part.bias
        with torch.inference_mode():
            assert products.can_fuse(values)
            torch.testing.assert_close(apply_linear(values, part), plain.detach(), rtol=1e-5, atol=1e-6)
            with_gelu = products.fused_linear(values, part, activation="gelu")
            torch.testing.assert_close(with_gelu, nn.functional.gelu(plain.detach()), rtol=1e-5, atol=1e-6)
            added = products.fused_linear(values, part, residual)
            torch.testing.assert_close(added, plain.detach() + residual, rtol=1e-5, atol=1e-6)
        with torch.no_grad():
            part.weight.mul_(2.0)  # as an optimizer does, in place


def test_nothing_is_joined_where_something_is_learned(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(products, "_has_onednn", lambda: True)
    assert not products.can_fuse(torch.randn(2, 3))


def test_batches_of_ever_new_sizes_do_not_fill_the_memory():
    script = """
import torch
from bertworks.encoders.linear import apply_linear
from torch import nn

def resident():
    with open("/proc/self/statm") as told:
        return int(told.read().split()[1]) * 4096 / 2**20

part, values, seen = nn.Linear(256, 1024), torch.randn(900, 256), []
with torch.inference_mode():
    for number in range(100, 900):
        apply_linear(values[:number], part)
        if number in (299, 899):
            seen.append(resident())
print(seen[1] - seen[0])
"""
    growth = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert float(growth) < 60  # MiB for 600 sizes; where all are kept it is some 200
