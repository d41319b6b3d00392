"""Linear layers in the compute dtype, by the fastest library: values and weights in, values out.

The compute dtype is autocast's, or that of the values. Under autocast a weight is cast once for each of its versions,
that is once a step, and not once a use; matmuls accumulate in fp32, and the gradients of fp32 weights are fp32.

On processors with AVX-512, oneDNN's linear layer with a bias takes 0.85 of the time of MKL's (which adds the bias in a
second pass), and the gradient of the input 0.9; in fp32 the gradient of the weight is faster with MKL. Without AVX-512
the two are equal, so MKL computes everything in fp32. The choice depends on the processor alone, never on a
measurement, so that a machine always computes the same bits.

N tokens, D inputs, O outputs.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakTensorKeyDictionary

from bertworks.encoders.precision import has_native_bf16

# oneDNN and torch cache a prepared operation for every shape, by default a thousand of each at up to half a megabyte.
# Inference rounds its shapes, so that few are needed.
for _setting in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_setting, "256")

# The number of tokens that weights are packed for; they can be multiplied with any number.
_PACKING_BATCH_SIZE = 2_048


@functools.cache
def _has_onednn(dtype: torch.dtype) -> bool:
    """Whether torch has oneDNN's linear layer with a bias, and the processor the instructions for this dtype."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):  # type: ignore[no-untyped-call]
        return False
    if dtype == torch.bfloat16:
        return has_native_bf16()
    return dtype == torch.float32 and torch.backends.cpu.get_cpu_capability() == "AVX512"


def compute_dtype(values: torch.Tensor) -> torch.dtype:
    """Return the dtype that matmuls compute in: autocast's, or that of the values."""
    device = values.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else values.dtype


# Copies of weights, each with the version of the weight that it is a copy of: a copy lives as long as its weight and is
# renewed when the weight changes. Cast to the compute dtype for training; in oneDNN's own format for inference.
_cast_weights: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
_packed_weights: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
_is_weight_cache_enabled = True


def disable_weight_cache() -> None:
    """Cache no copies of weights in this process: FSDP refills the storage of weights without a new version."""
    global _is_weight_cache_enabled
    _is_weight_cache_enabled = False


def _can_cache(weight: torch.Tensor) -> bool:
    return _is_weight_cache_enabled and weight.is_leaf and not weight.is_inference()


def cast_weight(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a weight in the compute dtype, without a gradient; the copy of a parameter is cached."""
    if weight.dtype == dtype:
        return weight.detach()
    if not _can_cache(weight):
        return weight.detach().to(dtype)
    version, cast_dtype, cast = _cast_weights.get(weight, (-1, None, weight))  # type: ignore[no-untyped-call]
    if version != weight._version or cast_dtype != dtype:
        with torch.inference_mode(False):  # evaluation may come before training
            cast = weight.detach().to(dtype)
        _cast_weights[weight] = (weight._version, dtype, cast)
    return cast


def _pack(module: nn.Linear, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the weight of a linear layer in oneDNN's own format for this dtype, and its bias, if it has one."""
    weight, bias = module.weight, module.bias
    if not torch.is_inference_mode_enabled() or not _can_cache(weight):
        return cast_weight(weight, dtype), _cast_bias(bias, dtype)
    key = (weight._version, None if bias is None else bias._version, dtype)
    packed: tuple[Any, torch.Tensor, torch.Tensor | None] | None = _packed_weights.get(weight)  # type: ignore[no-untyped-call]
    if packed is None or packed[0] != key:
        packed_weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(dtype), _PACKING_BATCH_SIZE)
        packed = (key, packed_weight, None if bias is None else bias.detach().to(dtype))
        _packed_weights[weight] = packed
    return packed[1], packed[2]


def _cast_bias(bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    return None if bias is None else bias.to(dtype)


def use_custom_kernels() -> bool:
    """Whether our kernels may be used: not where torch.compile rewrites operations."""
    return not torch.compiler.is_compiling()


def can_fuse(values: torch.Tensor) -> bool:
    """Whether a linear layer may be fused with what follows it: oneDNN computes, and no gradient is needed."""
    return (
        not torch.is_grad_enabled()
        and values.device.type == "cpu"
        and use_custom_kernels()
        and _has_onednn(compute_dtype(values))
    )


def fused_linear(
    values: torch.Tensor, module: nn.Linear, residual: torch.Tensor | None = None, activation: str = "none"
) -> torch.Tensor:
    """Return module(values) (N, O) plus a residual (N, O), or with "gelu" applied, in one kernel."""
    dtype = compute_dtype(values)
    values, (weight, bias) = values.to(dtype), _pack(module, dtype)
    if residual is None:
        return torch.ops.mkldnn._linear_pointwise.default(values, weight, bias, activation, [], "none")
    if residual.dtype == dtype:
        return torch.ops.mkldnn._linear_pointwise.binary(values, residual, weight, bias, "add")
    # Adding tensors of two dtypes is not vectorized.
    return (
        torch.ops.mkldnn._linear_pointwise.default(values, weight, bias, "none", [], "")
        .to(residual.dtype)
        .add_(residual)
    )


def linear(values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return values (N, D) @ weight (O, D).T + bias, all of one dtype, without a gradient."""
    if values.device.type == "cpu" and _has_onednn(values.dtype):
        return torch.ops.mkldnn._linear_pointwise.default(values, weight, bias, "none", [], "")
    result = values @ weight.t()
    return result if bias is None else result.add_(bias)


class _LinearFunction(torch.autograd.Function):
    """values @ weight.T + bias, if there is one, in the compute dtype, with a gradient."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        dtype = compute_dtype(values)
        ctx.dtypes = (values.dtype, weight.dtype, None if bias is None else bias.dtype)
        values, weight = values.to(dtype), cast_weight(weight, dtype)
        ctx.save_for_backward(values, weight)
        return linear(values, weight, _cast_bias(bias, dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        values, weight = ctx.saved_tensors
        values_dtype, weight_dtype, bias_dtype = ctx.dtypes
        needs_values, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            linear(grad_output, weight.t()).to(values_dtype) if needs_values else None,
            (grad_output.t() @ values).to(weight_dtype) if needs_weight else None,
            grad_output.sum(0).to(bias_dtype) if needs_bias else None,
        )


def apply_linear(values: torch.Tensor, module: nn.Linear, rows: slice | None = None) -> torch.Tensor:
    """Return module(values) in the compute dtype, or the outputs of some rows of its weight.

    torch copies the bias to the result and lets the matmul add to it, which costs two passes over memory. A compiled
    layer fuses the addition with whatever follows; the view keeps the compiler from undoing that.
    """
    weight: torch.Tensor = module.weight if rows is None else module.weight[rows]
    bias: torch.Tensor | None = module.bias if rows is None or module.bias is None else module.bias[rows]
    if torch.compiler.is_compiling():
        product = values @ weight.t()
        return product if bias is None else product[:, None].add(bias).flatten(0, 1)
    if rows is None and can_fuse(values):
        return fused_linear(values, module)
    if torch.is_grad_enabled():
        return _LinearFunction.apply(values, weight, bias)  # type: ignore[no-untyped-call]
    dtype = compute_dtype(values)
    return linear(values.to(dtype), cast_weight(weight, dtype), _cast_bias(bias, dtype))
