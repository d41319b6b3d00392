"""What becomes of freed memory, in processes of their own: it is the C library of the whole process that is told."""

import subprocess
import sys

import pytest

# Large blocks, each with a small one behind it that stays, so that what is freed lies in gaps.
FRAGMENTED = """
import psutil, torch
from bertworks import allocation
assert allocation.{told}()
kept = []
def use():
    large = []
    for _ in range(100):
        large.append(torch.ones(8 * 2**18))
        kept.append(torch.ones(8))
use()
{after}
print(psutil.Process().memory_info().rss / 2**20)
"""


def left_after(told: str, after: str = "") -> float:
    """Return the MiB of a process that has used and freed a hundred blocks of 8 MiB."""
    code = FRAGMENTED.format(told=told, after=after)
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is told")
def test_freed_memory_is_kept_or_goes_back_as_was_wished():
    kept = left_after("keep_freed_memory")
    assert left_after("give_back_large_blocks") < kept - 700
    assert left_after("keep_freed_memory", "assert allocation.give_back_freed_memory()") < kept - 700
