"""The two allowed outcomes of a reader: a function and a file in; success, or a BertworksError of one line."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from bertworks.errors import BertworksError

# A small file may take this much, and more than any of ours needs; beyond it something grows with a number in the file.
MAX_SECONDS = 20
MAX_BYTES = 3 * 2**30


def check_outcome(read: Callable[[], Any], allowed: type[Exception] = BertworksError) -> None:
    """Call a reader; anything but success or an allowed error of one line fails the test."""
    try:
        read()
    except allowed as error:
        message = str(error)
        assert message.strip(), "an error without a message"
        assert "\n" not in message, f"more than one line: {message!r}"
        assert len(message) < 2_000, f"a message of {len(message):,} characters: {message[:200]}…"


@contextlib.contextmanager
def bounded_machine() -> Iterator[None]:
    """Bound what the block may allocate in addition, and its time: more raises MemoryError or TimeoutError."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = size + MAX_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    previous = signal.signal(signal.SIGALRM, _time_out)
    signal.alarm(MAX_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _time_out(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"a small file took more than {MAX_SECONDS} seconds")
