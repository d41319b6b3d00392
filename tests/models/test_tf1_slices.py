"""Slices of partitioned variables: TensorFlow's keys by hand, and arrays joined from slices."""

import numpy as np
import pytest

from bertworks.models.tf1_slices import FULL, join_slices, slice_key


def test_a_key_is_in_tensorflows_ordered_code():
    # 0; "a/b" and its end; two dimensions; each start and length: 0x80 ^ value up to 63, then 0xc0 and two bytes
    assert slice_key("a/b", ((0, 2), (64, FULL))) == b"\x00a/b\x00\x01\x01\x02\x80\x82\xc0\x40\x7f"
    assert slice_key("a\0\xff", ()) == b"\x00a\x00\xff\xc3\xbf\x00\x01\x00"
    assert slice_key("", ((8_191, 8_192),)) == b"\x00\x00\x01\x01\x01\xdf\xff\xe0\x20\x00"


def test_slices_are_joined():
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    rows = [(((0, 3), (0, FULL)), values[:3]), (((3, 1), (0, FULL)), values[3:])]
    assert np.array_equal(join_slices((4, 3), rows), values)
    columns = [(((0, FULL), (0, 1)), values[:, :1]), (((0, FULL), (1, 2)), values[:, 1:])]
    assert np.array_equal(join_slices((4, 3), columns), values)


@pytest.mark.parametrize(
    ("extents", "message"),
    [
        ([((0, 2), (0, FULL))], "do not cover it"),
        ([((0, 2), (0, FULL)), ((0, 2), (0, FULL))], "overlap"),
        ([((0, 2), (0, FULL)), ((3, 2), (0, FULL))], "does not fit"),
        ([((0, 4),)], "1 dimensions"),
    ],
)
def test_slices_that_do_not_cover_the_variable_are_refused(extents: list, message: str):
    with pytest.raises(ValueError, match=message):
        join_slices((4, 3), [(extent, np.zeros((2, 3), np.float32)) for extent in extents])
