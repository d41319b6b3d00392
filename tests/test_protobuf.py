"""Protobuf messages by hand: fields of each wire type, and damaged messages."""

import pytest

from bertworks.protobuf import fields_of, messages_of, numbers_of, read_varint


def test_fields_of_each_wire_type_are_read():
    # field 1: varint 300; field 2: the string "ab"; field 3: four bytes; field 4: eight bytes
    data = b"\x08\xac\x02" + b"\x12\x02ab" + b"\x1d\x01\x00\x00\x00" + b"\x21" + (7).to_bytes(8, "little")
    assert list(fields_of(data)) == [(1, 300), (2, b"ab"), (3, 1), (4, 7)]
    assert numbers_of(data) == {1: 300, 3: 1, 4: 7}
    assert messages_of(data) == {2: b"ab"}
    assert read_varint(b"\xac\x02", 0) == (300, 2)


@pytest.mark.parametrize("data", [b"\x12\x05ab", b"\x0b", b"\x08" + b"\xff" * 10])
def test_a_damaged_message_is_refused(data: bytes):
    with pytest.raises(ValueError, match=r"exceeds the message|wire type 3|more than 64 bits"):
        list(fields_of(data))
