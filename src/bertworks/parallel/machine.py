"""What this machine is: nothing in, facts for reports and estimates out."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

from bertworks.parallel.workers import num_cores


def machine_info() -> dict[str, Any]:
    """Return the processor, cores, memory and versions that a figure depends on."""
    return {
        "processor": _processor(),
        "cores": num_cores(),
        "memory_gib": round(_total_bytes() / 2**30, 1),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    }


def available_bytes(device: torch.device = torch.device("cpu")) -> int:
    """Return how much memory of a device could be taken now; of the machine, without swapping."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    told = Path("/proc/meminfo")
    if told.exists():
        for line in told.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return _total_bytes() // 2


def peak_bytes(device: torch.device) -> int:
    """Return the most memory of a device that this process has taken so far; of the machine, its resident size."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    told = Path("/proc/self/status")
    if told.exists():
        return int(next(line for line in told.read_text().splitlines() if line.startswith("VmHWM")).split()[1]) * 1024
    return 0


def _total_bytes() -> int:
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 8 * 2**30


def _processor() -> str:
    told = Path("/proc/cpuinfo")
    if told.exists():
        for line in told.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
