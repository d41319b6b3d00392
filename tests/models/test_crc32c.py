"""CRC-32C: the test vectors of RFC 3720, and a byte-by-byte reference implementation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertworks.models.crc32c import MAX_POWER, MIN_ROWS, crc32c, masked_crc32c


def table_entry(byte: int) -> int:
    """Divide one byte by the polynomial, bit by bit."""
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


TABLE = [table_entry(byte) for byte in range(256)]


def reference_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_vectors_of_the_rfc(data: bytes, expected: int):
    assert crc32c(data) == expected


@given(st.binary(max_size=700))
def test_short_messages_equal_the_reference(data: bytes):
    assert crc32c(data) == reference_crc32c(data)


# Around the sizes where rows become longer (64, 128, … bytes), and where a row is just full.
@pytest.mark.parametrize("size", [63, 64, 65, 127, 128, 4095, 4096, 4097, 65537, 70_001])
def test_longer_messages_equal_the_reference(size: int):
    data = bytes((index * index + index // 7) % 256 for index in range(size))
    assert crc32c(data) == reference_crc32c(data)


def test_rows_of_maximal_length_equal_the_reference():
    size = (4 << MAX_POWER) * MIN_ROWS + 12_345  # rows of maximal length, the last of them not full
    data = (np.arange(size, dtype=np.uint64) ** 2 // 11 % 251).astype(np.uint8)
    assert crc32c(data) == reference_crc32c(data.tobytes())


def test_an_unaligned_array_equals_the_reference():
    data = np.arange(5000, dtype=np.uint64).astype(np.uint8)
    assert crc32c(data[3:]) == reference_crc32c(data[3:].tobytes())


def test_the_masked_crc_is_rotated_by_fifteen_bits_plus_a_constant():
    # crc 0xE3069283: >> 15 is 0x0001C60D, << 17 is 0x25060000 in 32 bits; together 0x2507C60D, plus 0xA282EAD8.
    assert masked_crc32c(b"123456789") == 0xC78AB0E5
