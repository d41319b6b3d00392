"""How glibc's malloc treats freed memory in this process: a policy in, whether it could be set out.

A training step frees tensors of many megabytes and allocates the same sizes again at once. By default, glibc returns
each of them to the system, which zeroes every page before it hands it out again: up to a sixth of a training step. A
server's batches all have different sizes: freed memory fragments, and the process grows over hours.
"""

from __future__ import annotations

import ctypes
import functools

# Constants of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MAX_THRESHOLD = 2**31 - 1
_LARGE_BLOCK = 4 * 2**20


@functools.cache
def keep_freed_memory() -> bool:
    """Keep freed memory for the next tensor, for the rest of the process; return whether malloc supports it."""
    return _mallopt(_MMAP_THRESHOLD, 2**30) and _mallopt(_TRIM_THRESHOLD, _MAX_THRESHOLD)


def release_large_blocks() -> bool:
    """Return each large block to the system when it is freed; return whether malloc supports it.

    For sharded layers, which are gathered and freed all the time: small tensors would be allocated where a layer was,
    so that the next layer does not fit there.
    """
    return _mallopt(_MMAP_THRESHOLD, _LARGE_BLOCK)


def _mallopt(option: int, value: int) -> bool:
    try:
        return bool(ctypes.CDLL(None).mallopt(option, value))
    except (AttributeError, OSError, TypeError):  # not glibc
        return False


def release_freed_memory() -> bool:
    """Return all free whole pages to the system; return whether any were released."""
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
