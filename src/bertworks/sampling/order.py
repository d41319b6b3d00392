"""The order of examples and their random generators: pure functions of (seed, phase, split, epoch, index)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class ExampleOrder:
    """The order of the examples of one phase and split. All randomness is keyed by its three fields."""

    seed: int
    phase: str
    split: str
    key: tuple[int, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        digest = hashlib.blake2b(f"{self.seed}\n{self.phase}\n{self.split}".encode(), digest_size=16).digest()
        words = (int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little"))
        object.__setattr__(self, "key", words)

    def generator(self, epoch: int, index: int) -> np.random.Generator:
        """Return the generator of one example: Philox at a counter of its own, without any state to save.

        The lowest word of the counter counts the draws, so no two examples share one.
        """
        counter = np.array([0, 0, epoch, index], dtype=np.uint64)
        key = np.array(self.key, dtype=np.uint64)
        return np.random.Generator(np.random.Philox(counter=counter, key=key))

    def offset(self, epoch: int) -> float:
        """Return the offset of an epoch's anchors, in 0..1: examples of different epochs start at different tokens."""
        return _mix(self.key[0] ^ _mix(epoch + 1)) / 2.0**64

    def permute(self, epoch: int, index: int, size: int) -> int:
        """Return the image of `index` in the epoch's permutation of 0..size-1.

        A Feistel network permutes the next power of four; a value outside the range is permuted again until it is
        inside (cycle walking), so the result is a permutation.
        """
        half = max(1, ((size - 1).bit_length() + 1) // 2)
        mask = (1 << half) - 1
        key = self.key[1] ^ _mix(~epoch & _MASK)
        number = index
        while True:
            left, right = number >> half, number & mask
            for round_ in range(4):
                left, right = right, left ^ (_mix(right ^ key ^ (round_ * 0x9E3779B97F4A7C15)) & mask)
            number = left << half | right
            if number < size:
                return number


def _mix(number: int) -> int:
    """Hash a 64-bit number (SplitMix64)."""
    number = (number + 0x9E3779B97F4A7C15) & _MASK
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & _MASK
    return number ^ number >> 31
