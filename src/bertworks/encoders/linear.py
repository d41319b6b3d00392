"""The products of a layer, each with the library that is fastest for it: values and weights in, values out.

On processors with AVX-512, oneDNN's product with a bias takes 0.85 of the time of MKL's (whose bias is a pass of its
own), and the way back to the values 0.9; the slopes of weights stay with MKL, which is faster there. Without AVX-512
the two were equal, so MKL does all. Which is taken follows from the processor alone, never from a measurement: on one
machine the same numbers come out always.

N pieces, D width, O outputs.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakTensorKeyDictionary

# oneDNN and what torch has around it keep what they prepared for every number of pieces they have met, a thousand of
# each and half a megabyte at a time. Batches of mixed texts hardly ever repeat a number, and preparing is quick.
for _setting in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_setting, "64")

# For how many rows weights are laid out; any number of them can be multiplied.
_PACKING_BATCH_SIZE = 2_048


@functools.cache
def _has_onednn() -> bool:
    """Whether torch has oneDNN's product with a bias, and the processor what makes it fast."""
    return (
        torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


# Weights as oneDNN likes them best, each with the version of the weight it was made of: a copy that lives as long as
# the weight and is made anew when that has changed. Only for use, where weights stay as they are.
_packed_weights: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
_is_packing_enabled: ContextVar[bool] = ContextVar("packs", default=True)


@contextlib.contextmanager
def disable_weight_packing() -> Iterator[None]:
    """Take weights as they lie: for those that are filled anew behind the back of their version."""
    before = _is_packing_enabled.set(False)
    try:
        yield
    finally:
        _is_packing_enabled.reset(before)


def _pack_weight(weight: torch.Tensor) -> torch.Tensor:
    if (
        not _is_packing_enabled.get()
        or not torch.is_inference_mode_enabled()
        or weight.is_inference()
        or not weight.is_leaf
    ):
        return weight
    version, ready = _packed_weights.get(weight, (-1, weight))  # type: ignore[no-untyped-call]
    if version != weight._version:
        ready = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _PACKING_BATCH_SIZE)
        _packed_weights[weight] = (weight._version, ready)
    return ready


def use_custom_kernels(values: torch.Tensor) -> bool:
    """Whether products by hand may be used: not where a compiler or torch's mixed precision rewrites operations."""
    return not torch.compiler.is_compiling() and not torch.is_autocast_enabled(values.device.type)


def can_fuse(values: torch.Tensor) -> bool:
    """Whether a product may take along what follows it (`joined`): nothing is learned, and oneDNN computes."""
    is_fit = values.device.type == "cpu" and values.dtype == torch.float32
    return is_fit and _has_onednn() and use_custom_kernels(values) and not torch.is_grad_enabled()


def fused_linear(
    values: torch.Tensor, module: nn.Linear, residual: torch.Tensor | None = None, activation: str = "none"
) -> torch.Tensor:
    """Return what `part` makes of values (N, D), with "gelu" after it, or with a residual (N, O) added, in one pass."""
    weight = _pack_weight(module.weight)
    if residual is not None:
        return torch.ops.mkldnn._linear_pointwise.binary(values, residual, weight, module.bias, "add")
    return torch.ops.mkldnn._linear_pointwise(values, weight, module.bias, activation, [], "none")


def linear(values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return values (N, D) @ weight (O, D).T + bias. No gradient passes here."""
    if _has_onednn() and values.device.type == "cpu" and values.dtype == torch.float32:
        return torch.ops.mkldnn._linear_pointwise(values, weight, bias, "none", [], "")
    result = values @ weight.t()
    return result if bias is None else result.add_(bias)


class _LinearFunction(torch.autograd.Function):
    """values @ weight.T + bias, forth and back."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(values, weight)
        return linear(values, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        values, weight = ctx.saved_tensors
        wants_values, wants_weight, wants_bias = ctx.needs_input_grad
        return (
            linear(grad_output, weight.t()) if wants_values else None,
            grad_output.t() @ values if wants_weight else None,
            grad_output.sum(0) if wants_bias else None,
        )


def apply_linear(values: torch.Tensor, module: nn.Linear, rows: slice = slice(None)) -> torch.Tensor:
    """Return what `part`, or some rows of it, makes of values (N, D), its bias added apart.

    torch writes the bias over the result first and lets the product add to it, which costs two passes over memory; a
    compiled layer adds it in passing to whatever follows. (The view keeps the compiler from joining the two again.)
    """
    weight, bias = module.weight[rows], module.bias[rows]
    if torch.compiler.is_compiling():
        return (values @ weight.t())[:, None].add(bias).flatten(0, 1)
    if not use_custom_kernels(values):
        return (values @ weight.t()).add_(bias)
    if rows == slice(None) and can_fuse(values):
        return fused_linear(values, module)
    if torch.is_grad_enabled():
        return _LinearFunction.apply(values, weight, bias)  # type: ignore[no-untyped-call]
    return linear(values, weight, bias)
