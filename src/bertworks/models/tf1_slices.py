"""Slices of partitioned variables in a TensorFlow 1 checkpoint: a name and the extents of a slice in, the key of its
entry out; arrays of slices in, the whole variable out.

A partitioned variable, such as embeddings that are spread over parameter servers, has an entry that lists its slices,
and each slice has an entry of its own under a key in TensorFlow's ordered code, whose bytes sort like the values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
# The start and the length of a slice in one dimension; the length -1 means all of it.
Extent = tuple[int, int]
FULL = -1


def slice_key(name: str, extents: tuple[Extent, ...]) -> bytes:
    """Return the key of a slice: 0, the name, the number of dimensions, and each start and length."""
    key = _unsigned(0) + _string(name.encode()) + _unsigned(len(extents))
    return key + b"".join(_signed(number) for extent in extents for number in extent)


def join_slices(shape: tuple[int, ...], parts: Iterable[tuple[tuple[Extent, ...], Array]]) -> Array:
    """Return the variable of this shape from its slices; raise ValueError if they do not cover it exactly."""
    slices = [(_index(extents, shape), values) for extents, values in parts]
    if sum(values.size for _, values in slices) != math.prod(shape) or not slices:
        raise ValueError("its slices do not cover it")
    result: Array = np.empty(shape, dtype=slices[0][1].dtype)
    is_covered = np.zeros(shape, dtype=np.bool_)
    for index, values in slices:
        if result[index].shape != values.shape or values.dtype != result.dtype:
            raise ValueError(f"a slice of shape {values.shape} does not fit")
        result[index] = values
        is_covered[index] = True
    if not is_covered.all():
        raise ValueError("its slices overlap")
    return result


def _index(extents: tuple[Extent, ...], shape: tuple[int, ...]) -> tuple[slice, ...]:
    if len(extents) != len(shape):
        raise ValueError(f"a slice has {len(extents)} dimensions")
    return tuple(slice(start, None if length == FULL else start + length) for start, length in extents)


def _unsigned(number: int) -> bytes:
    """The number of bytes, then the bytes, the highest first; 0 has none."""
    size = (number.bit_length() + 7) // 8
    return bytes([size]) + number.to_bytes(size, "big")


def _string(value: bytes) -> bytes:
    """The bytes 0 and 255 are escaped, and 0, 1 is the end."""
    return b"".join({0: b"\0\xff", 255: b"\xff\0"}.get(byte, bytes([byte])) for byte in value) + b"\0\1"


def _signed(number: int) -> bytes:
    """Seven bits a byte: as many leading ones as there are bytes, then the number; a negative one has all inverted."""
    magnitude = ~number if number < 0 else number
    size = magnitude.bit_length() // 7 + 1
    header = (1 << size) - 1 << 7 * size  # `size` ones, and a zero as the highest bit of the number
    encoded = header | magnitude
    return (encoded if number >= 0 else ~encoded & ((1 << 8 * size) - 1)).to_bytes(size, "big")
