"""Dropout as a pure function: values, a seed and a probability in, values with some set to zero out.

torch's dropout draws a random float for every value, on a CPU with one thread, which takes 20 to 45 % of a training
step. Here the seed and the index of a value decide: the same in any process, with any number of threads, and when a
step is repeated after a crash. In a compiled layer and on a GPU the decision is a hash of (seed, index), which costs
next to nothing there. Otherwise it is sixteen bits of numpy's Philox generator, which is the fastest on a CPU. Each
value is dropped independently with the given probability, to within 2^-17.

The mask on a CPU is a bf16 tensor of ones and zeros, made from those sixteen bits by integer operations: comparing to
booleans takes six times as long, and multiplying by booleans as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

# How many values an integer of 32 and of 16 bits has.
_WORD = 1 << 32
_HALF = 1 << 16
# The bits of 1.0 in bf16.
_BF16_ONE = 0x3F80


def _to_signed(number: int) -> int:
    return number - _WORD if number >= _WORD // 2 else number


# The multipliers of a well-tested 32-bit mixing function (two rounds of xor-shift and multiply).
_FIRST_MULTIPLIER, _SECOND_MULTIPLIER = _to_signed(0x7FEB352D), _to_signed(0x846CA68B)


def dropout_mask(shape: torch.Size, seed: torch.Tensor, dropout_prob: float) -> torch.Tensor:
    """Return a mask to multiply with: zero (or False) where a value is dropped. `seed` is an int32 scalar."""
    if torch.compiler.is_compiling() or seed.device.type != "cpu":
        return _hash_mask(shape, seed, dropout_prob)
    return _philox_mask(shape, int(seed), dropout_prob)


def _hash_mask(shape: torch.Size, seed: torch.Tensor, dropout_prob: float) -> torch.Tensor:
    index = torch.arange(shape.numel(), dtype=torch.int32, device=seed.device)
    bits = _mix(_mix(index + seed) ^ seed)
    return (bits >= round(dropout_prob * _WORD) - _WORD // 2).view(shape)


def _philox_mask(shape: torch.Size, seed: int, dropout_prob: float) -> torch.Tensor:
    words = np.random.Philox(key=seed % _WORD).random_raw(-(-shape.numel() // 4))
    bits = torch.from_numpy(words.view(np.int16))[: shape.numel()]
    return bits.ge_(round(dropout_prob * _HALF) - _HALF // 2).mul_(_BF16_ONE).view(torch.bfloat16).view(shape)


def dropout(values: torch.Tensor, seed: torch.Tensor | None, dropout_prob: float) -> torch.Tensor:
    """Drop values with the given probability and scale up the others; without a seed, return `values`."""
    if seed is None or dropout_prob == 0.0:
        return values
    mask = dropout_mask(values.shape, seed, dropout_prob)
    if torch.compiler.is_compiling():
        return torch.where(mask, values * (1.0 / (1.0 - dropout_prob)), 0.0)
    return _Dropout.apply(values, mask, 1.0 / (1.0 - dropout_prob))  # type: ignore[no-untyped-call]


class _Dropout(torch.autograd.Function):
    """values * mask * scale, which saves the mask alone for the backward pass."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(mask)
        ctx.scale = scale
        return (values * mask).mul_(scale).to(values.dtype)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (mask,) = ctx.saved_tensors
        return (grad_output * mask).mul_(ctx.scale).to(grad_output.dtype), None, None


def _mix(bits: torch.Tensor) -> torch.Tensor:
    # int32 has no unsigned shift, so the copies of the sign bit are masked out.
    bits = (bits ^ ((bits >> 16) & 0xFFFF)) * _FIRST_MULTIPLIER
    bits = (bits ^ ((bits >> 15) & 0x1FFFF)) * _SECOND_MULTIPLIER
    return bits ^ ((bits >> 16) & 0xFFFF)
