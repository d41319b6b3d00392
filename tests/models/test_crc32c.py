"""CRC-32C against the values of RFC 3720 and against the definition, byte by byte."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertworks.models.crc32c import MAX_POWER, MIN_ROWS, crc32c, masked_crc32c


def shifted_out(byte: int) -> int:
    """What eight steps of the division make of one byte."""
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


TABLE = [shifted_out(byte) for byte in range(256)]


def by_definition(data: bytes) -> int:
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
def test_known_values_of_the_standard(data: bytes, expected: int):
    assert crc32c(data) == expected


@given(st.binary(max_size=700))
def test_every_short_message_agrees_with_the_definition(data: bytes):
    assert crc32c(data) == by_definition(data)


# Around the sizes where the rows grow (64, 128, … bytes), and where a row is full or just over.
@pytest.mark.parametrize("size", [63, 64, 65, 127, 128, 4095, 4096, 4097, 65537, 70_001])
def test_longer_messages_agree_with_the_definition(size: int):
    data = bytes((place * place + place // 7) % 256 for place in range(size))
    assert crc32c(data) == by_definition(data)


def test_rows_of_the_largest_width_agree_with_the_definition():
    size = (4 << MAX_POWER) * MIN_ROWS + 12_345  # just enough for rows of that width, and a last one that is not full
    data = (np.arange(size, dtype=np.uint64) ** 2 // 11 % 251).astype(np.uint8)
    assert crc32c(data) == by_definition(data.tobytes())


def test_an_array_that_does_not_start_at_a_word_is_read_alike():
    data = np.arange(5000, dtype=np.uint64).astype(np.uint8)
    assert crc32c(data[3:]) == by_definition(data[3:].tobytes())


def test_the_mask_turns_by_fifteen_bits_and_adds():
    # crc 0xE3069283: >> 15 is 0x0001C60D, << 17 is 0x25060000 in 32 bits; together 0x2507C60D, plus 0xA282EAD8.
    assert masked_crc32c(b"123456789") == 0xC78AB0E5
