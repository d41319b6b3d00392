"""Threads of a matmul: nothing in, how many the calling thread uses out; PyTorch's number wherever PyTorch is loaded.

Graphs in ONNX Runtime and OpenVINO follow this number, so that they run without PyTorch, and share the cores with it
where both are used.
"""

from __future__ import annotations

import os
import sys
import threading

from bertworks.parallel.workers import num_cores

_local = threading.local()


def get_num_threads() -> int:
    """Return the number of threads for the matmuls of the calling thread."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.get_num_threads())
    return getattr(_local, "num_threads", None) or _default_num_threads()


def set_num_threads(num_threads: int) -> None:
    """Set that number, for the calling thread."""
    _local.num_threads = num_threads
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(num_threads)


def _default_num_threads() -> int:
    """Return OMP_NUM_THREADS, which PyTorch obeys, too, or the number of cores."""
    stated = os.environ.get("OMP_NUM_THREADS", "")
    return int(stated) if stated.isdecimal() and int(stated) else num_cores()
