"""Dropout as a pure function: values, a seed and a rate in; values with some set to zero out.

torch draws a random float for every value it may drop, on a CPU with one thread, which takes 20 to 45 % of a training
step. Here a seed and the number of a value decide, in any process and for any number of threads, also when a step is
repeated after a crash. Inside a compiled layer the decision is a hash of (seed, number), which costs next to nothing
there. Otherwise, on a CPU, it is sixteen bits of numpy's Philox generator, which is the fastest there. Each value is
dropped independently with the stated rate, to within 2^-17.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

_WORD = 1 << 32
_HALF = 1 << 16


def _to_signed(number: int) -> int:
    return number - _WORD if number >= _WORD // 2 else number


# The multipliers of a well-tested 32-bit mixing function (two rounds of xor-shift and multiply).
_FIRST_MULTIPLIER, _SECOND_MULTIPLIER = _to_signed(0x7FEB352D), _to_signed(0x846CA68B)


def dropout_mask(shape: torch.Size, seed: torch.Tensor, dropout_prob: float) -> torch.Tensor:
    """Return a boolean tensor: which values stay. `seed` is an int32 tensor of no dimension on the wanted device."""
    if torch.compiler.is_compiling() or seed.device.type != "cpu":
        return _hash_mask(shape, seed, dropout_prob)
    return _philox_mask(shape, int(seed), dropout_prob)


def _hash_mask(shape: torch.Size, seed: torch.Tensor, dropout_prob: float) -> torch.Tensor:
    number = torch.arange(shape.numel(), dtype=torch.int32, device=seed.device)
    number = _mix(_mix(number + seed) ^ seed)
    return (number >= round(dropout_prob * _WORD) - _WORD // 2).view(shape)


def _philox_mask(shape: torch.Size, seed: int, dropout_prob: float) -> torch.Tensor:
    generator = np.random.Philox(key=seed % _WORD)
    words = generator.random_raw(-(-shape.numel() // 4))
    halves = torch.from_numpy(words.view(np.int16))[: shape.numel()]
    return (halves >= round(dropout_prob * _HALF) - _HALF // 2).view(shape)


def dropout(values: torch.Tensor, seed: torch.Tensor | None, dropout_prob: float) -> torch.Tensor:
    """Return `values` with each set to zero at the given rate and the others scaled up; as they are without a seed."""
    if seed is None or dropout_prob == 0.0:
        return values
    stays = dropout_mask(values.shape, seed, dropout_prob)
    if torch.compiler.is_compiling():
        return torch.where(stays, values * (1.0 / (1.0 - dropout_prob)), 0.0)
    return _Dropout.apply(values, stays, 1.0 / (1.0 - dropout_prob))  # type: ignore[no-untyped-call]


class _Dropout(torch.autograd.Function):
    """values * stays * scale, keeping one byte a value for the way back instead of four."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(mask)
        ctx.scale = scale
        return values * (mask * scale).to(values.dtype)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (stays,) = ctx.saved_tensors
        return grad_output * (stays * ctx.scale).to(grad_output.dtype), None, None


def _mix(number: torch.Tensor) -> torch.Tensor:
    # int32 has no unsigned shift, so the copies of the sign bit are cut off.
    number = (number ^ ((number >> 16) & 0xFFFF)) * _FIRST_MULTIPLIER
    number = (number ^ ((number >> 15) & 0x1FFFF)) * _SECOND_MULTIPLIER
    return number ^ ((number >> 16) & 0xFFFF)
