"""Bytes in, their CRC-32C out, at the speed of numpy: the checksum TensorFlow puts on each block and tensor.

A CRC is linear, so many running sums can be kept side by side. The message is read as rows of K words; sum k sees
word k of each row, and one table look-up moves all K sums a whole row further. At the end the K sums are folded in
halves. A pure Python loop would need minutes for BERT-base; this needs seconds.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

POLYNOMIAL = 0x82F63B78  # Castagnoli's, bits reflected
MAX_POWER = 14  # log2 of K; 16,384 words and the tables stay in a core's second cache
MIN_ROWS = 16  # a short message gets about this many rows, however short it is


def crc32c(data: bytes | npt.NDArray[np.uint8]) -> int:
    """Return the CRC-32C of `data`, as RFC 3720 defines it."""
    message = np.frombuffer(data, dtype=np.uint8)
    power = min(MAX_POWER, max(0, (len(message) // (4 * MIN_ROWS)).bit_length() - 1))
    width = 4 << power
    # Zeros in front do not change a sum that starts at zero, so they fill the first row. The sum ought to start with
    # all bits set instead: the same as turning over the first 32 bits, which two rows surely hold.
    rest = min(len(message), len(message) % width + width)
    head = np.zeros(2 * width, dtype=np.uint8)
    head[2 * width - rest :] = message[:rest]
    start = 2 * width - rest
    head[start : start + 4] ^= 0xFF
    sums = _absorb(np.zeros(1 << power, dtype=np.uint32), head, power)
    sums = _absorb(sums, message[rest:], power)
    for half in reversed(range(power)):
        sums = _advance(sums[: 1 << half], half) ^ sums[1 << half :]
    # A message below four bytes has no 32 bits to turn over: those beyond its end are turned over here.
    missing = 0xFFFFFFFF >> (8 * len(message)) if len(message) < 4 else 0
    return int(_advance(sums, 0)[0]) ^ missing ^ 0xFFFFFFFF


def masked_crc32c(data: bytes | npt.NDArray[np.uint8]) -> int:
    """Return the checksum as TensorFlow stores it: turned by 15 bits and shifted, so that sums of sums stay good."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _absorb(sums: Words, message: npt.NDArray[np.uint8], power: int) -> Words:
    for row in message.view("<u4").reshape(-1, 1 << power):
        sums = _advance(sums, power) ^ row
    return sums


def _advance(sums: Words, power: int) -> Words:
    """Move each sum over 2**power words of zeros."""
    low, high = _tables(power)
    moved: Words = low[sums & 0xFFFF] ^ high[sums >> 16]
    return moved


@lru_cache(maxsize=MAX_POWER + 1)
def _tables(power: int) -> tuple[Words, Words]:
    """What moving over 2**power words makes of each low and each high half of a sum."""
    if power:  # twice as far is the same move once more
        bits = np.left_shift(np.uint32(1), np.arange(32, dtype=np.uint32), dtype=np.uint32)
        images = _advance(_advance(bits, power - 1), power - 1).tolist()
    else:
        images = [_advance_one_word(1 << bit) for bit in range(32)]
    return _xor_combinations(images[:16]), _xor_combinations(images[16:])


def _xor_combinations(images: list[int]) -> Words:
    """All sums (exclusive or) of the images of single bits, in the order of the bits chosen."""
    table = np.zeros(1, dtype=np.uint32)
    for image in images:
        table = np.concatenate([table, table ^ np.uint32(image)])
    return table


def _advance_one_word(crc: int) -> int:
    for _ in range(32):
        crc = (crc >> 1) ^ (POLYNOMIAL if crc & 1 else 0)
    return crc
