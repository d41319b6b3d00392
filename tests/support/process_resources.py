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


def leaks(before: Resources, after: Resources, max_growth: float) -> list[str]:
    """Return a phrase for each resource that has grown: files and threads at all, memory by more than `max_growth`."""
    growth = after.num_bytes / before.num_bytes - 1
    return [
        *([f"{after.num_files - before.num_files} open files"] if after.num_files > before.num_files else []),
        *([f"{after.num_threads - before.num_threads} threads"] if after.num_threads > before.num_threads else []),
        *([f"{growth:.1%} of memory"] if growth > max_growth else []),
    ]
