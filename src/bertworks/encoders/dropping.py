"""Dropout as a pure function: values, a seed and a rate in; values with some set to zero out.

torch draws a random float for every value it may drop, on a CPU with one thread, which takes 20 to 45 % of a training
step. Here whether value number i is dropped is decided by a hash of (seed, i): the same decision in any process, for
any number of threads, when a step is repeated after a crash, and inside a compiled layer, where it costs next to
nothing. Each value is dropped independently with the stated rate, to within 2^-32.
"""

from __future__ import annotations

import torch

_WORD = 1 << 32


def _signed(number: int) -> int:
    return number - _WORD if number >= _WORD // 2 else number


# The multipliers of a well-tested 32-bit mixing function (two rounds of xor-shift and multiply).
_FIRST, _SECOND = _signed(0x7FEB352D), _signed(0x846CA68B)


def kept(shape: torch.Size, seed: torch.Tensor, rate: float) -> torch.Tensor:
    """Return a boolean tensor: which values stay. `seed` is an int32 tensor of no dimension on the wanted device."""
    number = torch.arange(shape.numel(), dtype=torch.int32, device=seed.device)
    number = _mixed(_mixed(number + seed) ^ seed)
    return (number >= round(rate * _WORD) - _WORD // 2).view(shape)


def drop(values: torch.Tensor, seed: torch.Tensor | None, rate: float) -> torch.Tensor:
    """Return `values` with each set to zero at the given rate and the others scaled up; as they are without a seed."""
    if seed is None or rate == 0.0:
        return values
    return torch.where(kept(values.shape, seed, rate), values * (1.0 / (1.0 - rate)), 0.0)


def _mixed(number: torch.Tensor) -> torch.Tensor:
    # int32 has no unsigned shift, so the copies of the sign bit are cut off.
    number = (number ^ ((number >> 16) & 0xFFFF)) * _FIRST
    number = (number ^ ((number >> 15) & 0x1FFFF)) * _SECOND
    return number ^ ((number >> 16) & 0xFFFF)
