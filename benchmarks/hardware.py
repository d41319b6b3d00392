"""This machine: nothing in; the processor, its native precisions and the throughput of one large matmul out."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from timing import seconds_of

_CPUINFO = Path("/proc/cpuinfo")
# Flags with which a processor multiplies bf16 natively: x86, and ARM.
_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
# Flags that decide the speed of matmuls.
_SHOWN_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_bf16", "amx_int8", "bf16", "i8mm")
_MATMUL_SIZE, _NUM_MATMULS = 2_048, 5


def processor() -> str:
    """Return the name of the processor."""
    text = _CPUINFO.read_text(encoding="utf-8") if _CPUINFO.is_file() else ""
    match = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def flags() -> list[str]:
    """Return the flags of the processor that decide the speed of matmuls."""
    words = set(_CPUINFO.read_text(encoding="utf-8").split()) if _CPUINFO.is_file() else set()
    return [flag for flag in _SHOWN_FLAGS if flag in words]


def has_native_bf16() -> bool:
    """Return whether the processor multiplies bf16 natively."""
    return not _BF16_FLAGS.isdisjoint(flags())


def native_precisions() -> list[str]:
    """Return fp32, and bf16 where it is native."""
    return ["fp32", "bf16"] if has_native_bf16() else ["fp32"]


def resolve_precision(name: str) -> str:
    """Return the precision of that name; `auto` is bf16 where it is native, else fp32."""
    return native_precisions()[-1] if name == "auto" else name


def matmul_throughput(precision: str, packed: bool = False) -> float:
    """Return the FLOP/s of a large matmul, the best of a few; `packed`: also with a weight packed for oneDNN."""
    import torch

    matrix = torch.randn(_MATMUL_SIZE, _MATMUL_SIZE).to({"fp32": torch.float32, "bf16": torch.bfloat16}[precision])
    matmuls = [lambda: matrix @ matrix]
    if packed and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        weight = torch.ops.mkldnn._reorder_linear_weight(matrix, _MATMUL_SIZE)
        matmuls.append(lambda: torch.ops.mkldnn._linear_pointwise(matrix, weight, None, "none", [], ""))
    return 2 * _MATMUL_SIZE**3 / min(seconds_of(matmul) for matmul in matmuls for _ in range(_NUM_MATMULS))
