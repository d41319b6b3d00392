"""Bytes in, their CRC-32C out, vectorized with numpy: the checksum of blocks and tensors in TensorFlow checkpoints.

A CRC is linear, so many partial CRCs can be computed in parallel. The message is read as rows of K words; CRC k
absorbs word k of each row, and one table look-up advances all K CRCs by a row. At the end the K CRCs are folded in
halves. A pure Python loop would need minutes for BERT-base; this needs seconds.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected
MAX_POWER = 14  # log2 of K; 16,384 words and the tables fit into the L2 cache of a core
MIN_ROWS = 16  # a short message is divided into about this many rows


def crc32c(data: bytes | npt.NDArray[np.uint8]) -> int:
    """Return the CRC-32C of `data`, as RFC 3720 defines it."""
    message = np.frombuffer(data, dtype=np.uint8)
    power = min(MAX_POWER, max(0, (len(message) // (4 * MIN_ROWS)).bit_length() - 1))
    row_bytes = 4 << power
    # Leading zeros do not change a CRC that starts at zero, so they pad the first row. The initial value of CRC-32C has
    # all bits set: the same as inverting the first 32 bits of the message, which are in the first two rows.
    num_head_bytes = min(len(message), len(message) % row_bytes + row_bytes)
    head = np.zeros(2 * row_bytes, dtype=np.uint8)
    head[2 * row_bytes - num_head_bytes :] = message[:num_head_bytes]
    start = 2 * row_bytes - num_head_bytes
    head[start : start + 4] ^= 0xFF
    crcs = _absorb(np.zeros(1 << power, dtype=np.uint32), head, power)
    crcs = _absorb(crcs, message[num_head_bytes:], power)
    for half in reversed(range(power)):
        crcs = _advance(crcs[: 1 << half], half) ^ crcs[1 << half :]
    # A message of less than four bytes has no 32 bits to invert: the bits beyond its end are inverted here.
    missing = 0xFFFFFFFF >> (8 * len(message)) if len(message) < 4 else 0
    return int(_advance(crcs, 0)[0]) ^ missing ^ 0xFFFFFFFF


def masked_crc32c(data: bytes | npt.NDArray[np.uint8]) -> int:
    """Return the CRC as TensorFlow stores it: rotated by 15 bits plus a constant (CRCs of CRCs are weak otherwise)."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _absorb(crcs: Words, message: npt.NDArray[np.uint8], power: int) -> Words:
    for row in message.view("<u4").reshape(-1, 1 << power):
        crcs = _advance(crcs, power) ^ row
    return crcs


def _advance(crcs: Words, power: int) -> Words:
    """Advance each CRC by 2**power words of zeros."""
    low, high = _tables(power)
    advanced: Words = low[crcs & 0xFFFF] ^ high[crcs >> 16]
    return advanced


@lru_cache(maxsize=MAX_POWER + 1)
def _tables(power: int) -> tuple[Words, Words]:
    """Return the look-up tables of advancing by 2**power words, for the low and the high half of a CRC."""
    if power:  # 2**power words are twice 2**(power - 1)
        bits = np.left_shift(np.uint32(1), np.arange(32, dtype=np.uint32), dtype=np.uint32)
        images = _advance(_advance(bits, power - 1), power - 1).tolist()
    else:
        images = [_advance_one_word(1 << bit) for bit in range(32)]
    return _xor_combinations(images[:16]), _xor_combinations(images[16:])


def _xor_combinations(images: list[int]) -> Words:
    """Return the XOR of the images of all subsets of bits, indexed by the subset."""
    table = np.zeros(1, dtype=np.uint32)
    for image in images:
        table = np.concatenate([table, table ^ np.uint32(image)])
    return table


def _advance_one_word(crc: int) -> int:
    for _ in range(32):
        crc = (crc >> 1) ^ (POLYNOMIAL if crc & 1 else 0)
    return crc
