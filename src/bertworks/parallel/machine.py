"""This machine: nothing in, its processor, memory and versions out."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

import bertworks
from bertworks.parallel.workers import num_cores


def machine_info() -> dict[str, Any]:
    """Return the processor, cores, memory and versions that a measurement depends on."""
    return {
        "processor": _processor(),
        "cores": num_cores(),
        "memory_gib": round(_total_bytes() / 2**30, 1),
        "bertworks": bertworks.__version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    }


def available_bytes(device: torch.device = torch.device("cpu")) -> int:
    """Return the free memory of a device; of the CPU, what can be allocated without swapping."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return _total_bytes() // 2


def peak_bytes(device: torch.device) -> int:
    """Return the peak memory of this process on a device; on the CPU, its peak resident size."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.exists():
        return int(next(line for line in status.read_text().splitlines() if line.startswith("VmHWM")).split()[1]) * 1024
    return 0


def _total_bytes() -> int:
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 8 * 2**30


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
