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


def _signed(number: int) -> int:
    return number - _WORD if number >= _WORD // 2 else number


# The multipliers of a well-tested 32-bit mixing function (two rounds of xor-shift and multiply).
_FIRST, _SECOND = _signed(0x7FEB352D), _signed(0x846CA68B)


def kept(shape: torch.Size, seed: torch.Tensor, rate: float) -> torch.Tensor:
    """Return a boolean tensor: which values stay. `seed` is an int32 tensor of no dimension on the wanted device."""
    if torch.compiler.is_compiling() or seed.device.type != "cpu":
        return _kept_by_hash(shape, seed, rate)
    return _kept_by_philox(shape, int(seed), rate)


def _kept_by_hash(shape: torch.Size, seed: torch.Tensor, rate: float) -> torch.Tensor:
    number = torch.arange(shape.numel(), dtype=torch.int32, device=seed.device)
    number = _mixed(_mixed(number + seed) ^ seed)
    return (number >= round(rate * _WORD) - _WORD // 2).view(shape)


def _kept_by_philox(shape: torch.Size, seed: int, rate: float) -> torch.Tensor:
    generator = np.random.Philox(key=seed % _WORD)
    words = generator.random_raw(-(-shape.numel() // 4))
    halves = torch.from_numpy(words.view(np.int16))[: shape.numel()]
    return (halves >= round(rate * _HALF) - _HALF // 2).view(shape)


def drop(values: torch.Tensor, seed: torch.Tensor | None, rate: float) -> torch.Tensor:
    """Return `values` with each set to zero at the given rate and the others scaled up; as they are without a seed."""
    if seed is None or rate == 0.0:
        return values
    stays = kept(values.shape, seed, rate)
    if torch.compiler.is_compiling():
        return torch.where(stays, values * (1.0 / (1.0 - rate)), 0.0)
    return _Dropped.apply(values, stays, 1.0 / (1.0 - rate))  # type: ignore[no-untyped-call]


class _Dropped(torch.autograd.Function):
    """values * stays * scale, keeping one byte a value for the way back instead of four."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, stays: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(stays)
        ctx.scale = scale
        return values * (stays * scale).to(values.dtype)

    @staticmethod
    def backward(ctx: Any, slopes: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (stays,) = ctx.saved_tensors
        return slopes * (stays * ctx.scale).to(slopes.dtype), None, None


def _mixed(number: torch.Tensor) -> torch.Tensor:
    # int32 has no unsigned shift, so the copies of the sign bit are cut off.
    number = (number ^ ((number >> 16) & 0xFFFF)) * _FIRST
    number = (number ^ ((number >> 15) & 0x1FFFF)) * _SECOND
    return number ^ ((number >> 16) & 0xFFFF)
