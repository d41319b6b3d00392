"""What a process holds: its open files, threads and memory in, whether it has kept more than before out."""

from __future__ import annotations

from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Resources:
    """The open files and sockets, threads and bytes of memory of a process."""

    num_files: int
    num_threads: int
    num_bytes: int

    @classmethod
    def of(cls, pid: int) -> Resources:
        process = psutil.Process(pid)
        return cls(process.num_fds(), process.num_threads(), process.memory_info().rss)


# Pools start their threads when they are first needed, and not all before a first measurement.
MAX_NEW_THREADS = 8


def leaks(before: Resources, after: Resources, max_growth: float) -> list[str]:
    """Return a phrase for each resource that has grown: files at all, threads beyond pools, memory by `max_growth`."""
    num_threads = after.num_threads - before.num_threads
    growth = after.num_bytes / before.num_bytes - 1
    return [
        *([f"{after.num_files - before.num_files} open files"] if after.num_files > before.num_files else []),
        *([f"{num_threads} threads"] if num_threads > MAX_NEW_THREADS else []),
        *([f"{growth:.1%} of memory"] if growth > max_growth else []),
    ]
