"""Attention and feed-forward networks as autograd functions that save fewer tensors: tensors in, tensors out.

Plain autograd saves the intermediate values of the feed-forward network twice (before and after the activation) and
the attention scores three times. Here the activation is recomputed in the backward pass, which takes a hundredth of
the time and saves a third of the memory of a training step; attention weights are saved twice, before and after
dropout; queries, keys and values are made contiguous by one copy instead of six.

They compute in autocast's dtype, or that of their input: in bf16, matmuls, softmax and activation
accumulate in fp32, and what is saved takes half the memory. Gradients have the dtype of what they belong to.

N tokens, D hidden size, I intermediate size, C sequences of T positions, H heads, d = D / H, R rotated heads.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.autograd.function import once_differentiable

from bertworks.encoders.linear import cast_weight, compute_dtype, linear

# Values of a vector register in bf16. torch's loops over rows of another length take several times as long per value.
_BF16_LANES = 32
# Below this length rows do not fill a register of fp32 either.
_FP32_LANES = 16


def softmax(scores: torch.Tensor) -> torch.Tensor:
    """Return the softmax over the last dimension, in the dtype of the scores, computed in fp32."""
    length = scores.shape[-1]
    if scores.dtype == torch.bfloat16 and length >= _FP32_LANES and length % _BF16_LANES * 16 > length:
        return torch.softmax(scores, -1, dtype=torch.float32).to(scores.dtype)
    return torch.softmax(scores, -1).to(scores.dtype)  # autocast returns fp32 on a GPU


def _subtract_product(values: torch.Tensor, weights: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """Return values - weights * sums (…, 1), in place."""
    if values.dtype == torch.bfloat16 and values.shape[-1] % _BF16_LANES:
        sums = sums.expand_as(values).contiguous()  # all of one shape: a single loop, not one per row
    return values.addcmul_(weights, sums, value=-1.0)


class GeluFeedForward(torch.autograd.Function):
    """output(gelu(intermediate(values))), which saves the intermediate values once."""

    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        intermediate_weight: torch.Tensor,
        intermediate_bias: torch.Tensor,
        output_weight: torch.Tensor,
        output_bias: torch.Tensor,
    ) -> torch.Tensor:
        dtype = compute_dtype(values)
        ctx.values_dtype, ctx.weight_dtype = values.dtype, output_weight.dtype
        values = values.to(dtype)
        intermediate_weight, output_weight = (cast_weight(w, dtype) for w in (intermediate_weight, output_weight))
        intermediate = linear(values, intermediate_weight, intermediate_bias.to(dtype))  # (N, I)
        ctx.save_for_backward(values, intermediate_weight, output_weight, intermediate)
        return linear(F.gelu(intermediate), output_weight, output_bias.to(dtype))  # (N, D)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        values, intermediate_weight, output_weight, intermediate = ctx.saved_tensors
        dtype = ctx.weight_dtype
        grad_output_weight = (grad_output.t() @ F.gelu(intermediate)).to(dtype)
        grad_intermediate = torch.ops.aten.gelu_backward(linear(grad_output, output_weight.t()), intermediate)  # (N, I)
        return (
            linear(grad_intermediate, intermediate_weight.t()).to(ctx.values_dtype),
            (grad_intermediate.t() @ values).to(dtype),
            grad_intermediate.sum(0).to(dtype),
            grad_output_weight,
            grad_output.sum(0).to(dtype),
        )


class GatedGeluFeedForward(torch.autograd.Function):
    """output(gelu(a) * b), where the intermediate values are a and b (N, I each); saves these only. No biases."""

    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, intermediate_weight: torch.Tensor, output_weight: torch.Tensor
    ) -> torch.Tensor:
        dtype = compute_dtype(values)
        ctx.values_dtype, ctx.weight_dtype = values.dtype, output_weight.dtype
        values = values.to(dtype)
        intermediate_weight, output_weight = (cast_weight(w, dtype) for w in (intermediate_weight, output_weight))
        intermediate = linear(values, intermediate_weight)  # (N, 2I)
        ctx.save_for_backward(values, intermediate_weight, output_weight, intermediate)
        inputs, gates = intermediate.chunk(2, -1)
        return linear(F.gelu(inputs).mul_(gates), output_weight)  # (N, D)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        values, intermediate_weight, output_weight, intermediate = ctx.saved_tensors
        inputs, gates = intermediate.chunk(2, -1)
        activated = F.gelu(inputs)
        grad_output_weight = (grad_output.t() @ (activated * gates)).to(ctx.weight_dtype)
        grad_gated = linear(grad_output, output_weight.t())  # (N, I)
        grad_intermediate = torch.empty_like(intermediate)
        grad_inputs, grad_gates = grad_intermediate.chunk(2, -1)
        torch.mul(grad_gated, activated, out=grad_gates)
        grad_inputs.copy_(torch.ops.aten.gelu_backward(grad_gated.mul_(gates), inputs))
        return (
            linear(grad_intermediate, intermediate_weight.t()).to(ctx.values_dtype),
            (grad_intermediate.t() @ values).to(ctx.weight_dtype),
            grad_output_weight,
        )


class Rotate(torch.autograd.Function):
    """Rotate the first R heads of vectors (N, …) in place, by angles with these cosines and sines (N, 1, d / 2).

    Value i of the first half of a head and value i of its second half are the coordinates of a point in the plane.
    """

    @staticmethod
    def forward(
        ctx: Any, vectors: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, num_heads: int
    ) -> torch.Tensor:
        ctx.save_for_backward(cosines, sines)
        ctx.num_heads = num_heads
        ctx.mark_dirty(vectors)
        return rotate_in_place(vectors, cosines, sines, num_heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        cosines, sines = ctx.saved_tensors
        return rotate_in_place(grad_output.clone(), cosines, -sines, ctx.num_heads), None, None, None


def rotate_in_place(vectors: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rotate as `Rotate` does, without a gradient; computed in fp32."""
    first, second = vectors.view(len(vectors), -1, 2 * cosines.shape[-1])[:, :num_heads].chunk(2, -1)  # (N, R, d/2)
    is_half = vectors.itemsize < cosines.itemsize
    x, y = (first.float(), second.float()) if is_half else (first, second)
    rotated = (x * cosines).addcmul_(y, sines, value=-1), (y * cosines).addcmul_(x, sines)
    first.copy_(rotated[0])
    second.copy_(rotated[1])
    return vectors


class DropoutAttention(torch.autograd.Function):
    """dropout(softmax(queries @ keys.T / sqrt(d) + mask + bias)) @ values; queries, keys and values in one (N, 3D).

    `shape` is (C, T, H); `bias` (1, H, T, T) has a gradient; `dropout` is a mask (C, H, T, T), which is zero where an
    attention weight is dropped, with its probability, or None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query_key_value: torch.Tensor,
        bias: torch.Tensor | None,
        shape: tuple[int, int, int],
        mask: torch.Tensor | None,
        dropout: tuple[torch.Tensor, float] | None,
    ) -> torch.Tensor:
        num_sequences, length, num_heads = shape
        qkv = query_key_value.view(num_sequences, length, 3, num_heads, -1)
        qkv = qkv.permute(2, 0, 3, 1, 4).contiguous()  # (3, C, H, T, d)
        queries, keys, values = qkv
        queries *= 1 / math.sqrt(qkv.shape[-1])  # fewer values than the scores
        scores = queries @ keys.transpose(-2, -1)  # (C, H, T, T)
        if mask is not None:
            scores += mask
        if bias is not None:
            scores += bias
        weights = softmax(scores)
        dropped_weights = weights if dropout is None else (weights * dropout[0]).to(qkv.dtype)
        ctx.save_for_backward(qkv, weights, dropped_weights)
        ctx.scale = 1.0 if dropout is None else 1 / (1 - dropout[1])
        ctx.bias_dtype = None if bias is None else bias.dtype
        context = dropped_weights @ (values * ctx.scale)  # (C, H, T, d)
        return context.transpose(1, 2).reshape(num_sequences * length, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        qkv, weights, dropped_weights = ctx.saved_tensors
        queries, keys, values = qkv
        num_sequences, num_heads, length, head_size = queries.shape
        grad_context = grad_output.view(num_sequences, length, num_heads, head_size).transpose(1, 2)
        grad_context = grad_context * ctx.scale  # (C, H, T, d)
        grad_qkv = torch.empty_like(qkv)
        torch.matmul(dropped_weights.transpose(-2, -1), grad_context, out=grad_qkv[2])
        # The gradient of a softmax is weights * (grad - sum of grad * weights); dropped weights have none.
        grad_scores = (grad_context @ values.transpose(-2, -1)).mul_(dropped_weights)
        _subtract_product(grad_scores, weights, grad_scores.sum(-1, keepdim=True))
        grad_bias = None
        if ctx.bias_dtype is not None:
            grad_bias = grad_scores.sum(0, keepdim=True, dtype=ctx.bias_dtype)  # (1, H, T, T)
        torch.matmul(grad_scores, keys, out=grad_qkv[0]).mul_(1 / math.sqrt(head_size))
        torch.matmul(grad_scores.transpose(-2, -1), queries, out=grad_qkv[1])
        grad_query_key_value = grad_qkv.permute(1, 3, 0, 2, 4).reshape(num_sequences * length, -1)
        return grad_query_key_value, grad_bias, None, None, None
