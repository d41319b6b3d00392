"""Protobuf messages without a schema: the bytes of a message in, its fields by number out."""

from __future__ import annotations

from collections.abc import Iterator


def fields_of(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message: their numbers and values, which are integers or bytes; raise ValueError or
    IndexError if it is damaged."""
    offset = 0
    while offset < len(data):
        key, offset = read_varint(data, offset)
        wire_type = key & 7
        if wire_type == 0:
            value, offset = read_varint(data, offset)
            yield key >> 3, value
            continue
        if wire_type not in (1, 2, 5):
            raise ValueError(f"a field of wire type {wire_type}")
        size, offset = read_varint(data, offset) if wire_type == 2 else ({1: 8, 5: 4}[wire_type], offset)
        if offset + size > len(data):
            raise ValueError("a field exceeds the message")
        raw = data[offset : offset + size]
        yield key >> 3, raw if wire_type == 2 else int.from_bytes(raw, "little")
        offset += size


def numbers_of(data: bytes) -> dict[int, int]:
    """Return the fields of a message that are integers; the last one of each number."""
    return {number: value for number, value in fields_of(data) if isinstance(value, int)}


def messages_of(data: bytes) -> dict[int, bytes]:
    """Return the fields of a message that are strings or messages; the last one of each number."""
    return {number: value for number, value in fields_of(data) if isinstance(value, bytes)}


def read_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Read a varint (seven bits per byte, lowest first); return it and the offset behind it."""
    value = 0
    for shift in range(0, 64, 7):
        byte = data[offset]
        value |= (byte & 127) << shift
        offset += 1
        if byte < 128:
            return value, offset
    raise ValueError(f"the number at byte {offset} has more than 64 bits")
