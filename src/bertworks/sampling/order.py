"""Which example comes when, and its randomness: pure functions of (seed, phase, split, epoch, index), no arrays."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class ExampleOrder:
    """One order of examples: a seed, a phase of the recipe, and a split. It is the key of everything random."""

    seed: int
    phase: str
    split: str
    key: tuple[int, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        digest = hashlib.blake2b(f"{self.seed}\n{self.phase}\n{self.split}".encode(), digest_size=16).digest()
        words = (int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little"))
        object.__setattr__(self, "key", words)

    def generator(self, epoch: int, index: int) -> np.random.Generator:
        """Return the generator of one example. Philox takes its place in the stream as a counter: no state to keep.

        The lowest word of the counter counts the draws, so that two examples never share one.
        """
        counter = np.array([0, 0, epoch, index], dtype=np.uint64)
        key = np.array(self.key, dtype=np.uint64)
        return np.random.Generator(np.random.Philox(counter=counter, key=key))

    def offset(self, epoch: int) -> float:
        """Return the shift of an epoch's anchors, in 0..1: so that no epoch cuts the text where another did."""
        return _mix(self.key[0] ^ _mix(epoch + 1)) / 2.0**64

    def permute(self, epoch: int, index: int, size: int) -> int:
        """Return where `index` of 0..size-1 goes in the shuffled order of an epoch.

        A Feistel network permutes the next larger power of four; what falls outside is sent through again
        (cycle walking), which ends soon and keeps it a permutation.
        """
        half = max(1, ((size - 1).bit_length() + 1) // 2)
        mask = (1 << half) - 1
        key = self.key[1] ^ _mix(~epoch & _MASK)
        number = index
        while True:
            left, right = number >> half, number & mask
            for turn in range(4):
                left, right = right, left ^ (_mix(right ^ key ^ (turn * 0x9E3779B97F4A7C15)) & mask)
            number = left << half | right
            if number < size:
                return number


def _mix(number: int) -> int:
    """Spread the bits of a 64-bit number over all of it (the finaliser of SplitMix64)."""
    number = (number + 0x9E3779B97F4A7C15) & _MASK
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & _MASK
    return number ^ number >> 31
