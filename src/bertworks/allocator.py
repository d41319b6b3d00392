"""How the process treats freed memory: a wish in, the C library told out.

A step frees tensors of many megabytes and asks for the same again at once. Left to itself, glibc gives each back to the
system, which fills every page with zeros before it hands it out anew: up to a sixth of a training step. A server's
batches are all of different sizes; there what is freed lies in pieces between what is used, and grows with the hours.
"""

from __future__ import annotations

import ctypes
import functools

# Names and numbers from glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MAX_THRESHOLD = 2**31 - 1
_LARGE_BLOCK = 4 * 2**20


@functools.cache
def keep_freed_memory() -> bool:
    """Have freed memory kept for the next tensor, for the rest of the process; return whether the library can."""
    return _mallopt(_MMAP_THRESHOLD, 2**30) and _mallopt(_TRIM_THRESHOLD, _MAX_THRESHOLD)


def give_back_large_blocks() -> bool:
    """Have each large block go back to the system when it is freed, instead; return whether the library can.

    For layers that are gathered and given away again all the time: small tensors come to lie where a layer was, and the
    next one does not fit there.
    """
    return _mallopt(_MMAP_THRESHOLD, _LARGE_BLOCK)


def _mallopt(option: int, value: int) -> bool:
    try:
        return bool(ctypes.CDLL(None).mallopt(option, value))
    except (AttributeError, OSError, TypeError):  # not glibc
        return False


def give_back_freed_memory() -> bool:
    """Give the system all whole pages that nothing uses; return whether there were any and the library can."""
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
