"""Linear layers by the fastest library: values and weights in, values out.

On processors with AVX-512, oneDNN's linear layer with a bias takes 0.85 of the time of MKL's (which adds the bias in a
second pass), and the gradient of the input 0.9; the gradient of the weight is faster with MKL. Without AVX-512 the two
are equal, so MKL computes everything. The choice depends on the processor alone, never on a measurement, so that a
machine always computes the same bits.

N tokens, D inputs, O outputs.
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

# oneDNN and torch cache a prepared operation for every number of tokens, a thousand of each at half a megabyte. Batches
# of mixed texts hardly ever repeat a number, and preparing is quick.
for _setting in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_setting, "64")

# The number of tokens that weights are packed for; they can be multiplied with any number.
_PACKING_BATCH_SIZE = 2_048


@functools.cache
def _has_onednn() -> bool:
    """Whether torch has oneDNN's linear layer with a bias, and the processor has AVX-512."""
    return (
        torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


# Weights in oneDNN's own format, each with the version of the weight that it is a copy of: it lives as long as the
# weight and is renewed when the weight changes. For inference only.
_packed_weights: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
_is_packing_enabled: ContextVar[bool] = ContextVar("is_packing_enabled", default=True)


@contextlib.contextmanager
def disable_weight_packing() -> Iterator[None]:
    """Do not cache packed weights: for weights whose storage is refilled without a new version (FSDP)."""
    token = _is_packing_enabled.set(False)
    try:
        yield
    finally:
        _is_packing_enabled.reset(token)


def _pack_weight(weight: torch.Tensor) -> torch.Tensor:
    if (
        not _is_packing_enabled.get()
        or not torch.is_inference_mode_enabled()
        or weight.is_inference()
        or not weight.is_leaf
    ):
        return weight
    version, packed = _packed_weights.get(weight, (-1, weight))  # type: ignore[no-untyped-call]
    if version != weight._version:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _PACKING_BATCH_SIZE)
        _packed_weights[weight] = (weight._version, packed)
    return packed


def use_custom_kernels(values: torch.Tensor) -> bool:
    """Whether our kernels may be used: not where torch.compile or autocast rewrites operations."""
    return not torch.compiler.is_compiling() and not torch.is_autocast_enabled(values.device.type)


def can_fuse(values: torch.Tensor) -> bool:
    """Whether a linear layer may be fused with what follows it: oneDNN computes, and no gradient is needed."""
    is_supported = values.device.type == "cpu" and values.dtype == torch.float32
    return is_supported and _has_onednn() and use_custom_kernels(values) and not torch.is_grad_enabled()


def fused_linear(
    values: torch.Tensor, module: nn.Linear, residual: torch.Tensor | None = None, activation: str = "none"
) -> torch.Tensor:
    """Return module(values) (N, O) plus a residual (N, O), or with "gelu" applied, in one kernel."""
    weight = _pack_weight(module.weight)
    if residual is not None:
        return torch.ops.mkldnn._linear_pointwise.binary(values, residual, weight, module.bias, "add")
    return torch.ops.mkldnn._linear_pointwise(values, weight, module.bias, activation, [], "none")


def linear(values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return values (N, D) @ weight (O, D).T + bias, without a gradient."""
    if _has_onednn() and values.device.type == "cpu" and values.dtype == torch.float32:
        return torch.ops.mkldnn._linear_pointwise(values, weight, bias, "none", [], "")
    result = values @ weight.t()
    return result if bias is None else result.add_(bias)


class _LinearFunction(torch.autograd.Function):
    """values @ weight.T + bias, with a gradient."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(values, weight)
        return linear(values, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        values, weight = ctx.saved_tensors
        needs_values, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            linear(grad_output, weight.t()) if needs_values else None,
            grad_output.t() @ values if needs_weight else None,
            grad_output.sum(0) if needs_bias else None,
        )


def apply_linear(values: torch.Tensor, module: nn.Linear, rows: slice = slice(None)) -> torch.Tensor:
    """Return module(values), or the outputs of some rows of its weight.

    torch copies the bias to the result and lets the matmul add to it, which costs two passes over memory. A compiled
    layer fuses the addition with whatever follows; the view keeps the compiler from undoing that.
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
