"""What happens to freed memory, in processes of their own, because glibc's settings hold for the whole process."""

import subprocess
import sys

import pytest

# Large blocks, each followed by a small one that stays allocated, so that freed memory is fragmented.
FRAGMENTED = """
import psutil, torch
from bertworks import allocator
assert allocator.{policy}()
small = []
def allocate():
    large = []
    for _ in range(100):
        large.append(torch.ones(8 * 2**18))
        small.append(torch.ones(8))
allocate()
{afterwards}
print(psutil.Process().memory_info().rss / 2**20)
"""


def resident_mib(policy: str, afterwards: str = "") -> float:
    """Return the resident memory of a process that has allocated and freed a hundred blocks of 8 MiB."""
    code = FRAGMENTED.format(policy=policy, afterwards=afterwards)
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc's malloc")
def test_freed_memory_is_kept_or_returned_to_the_system():
    kept = resident_mib("keep_freed_memory")
    assert resident_mib("release_large_blocks") < kept - 700
    assert resident_mib("keep_freed_memory", "assert allocator.release_freed_memory()") < kept - 700
