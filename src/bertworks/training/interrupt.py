"""Ctrl-C and SIGTERM in, a wish to leave after the step out."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

# What a run says that left because it was asked to.
STOP_MESSAGE = "asked to stop: saved; the same command continues"


@contextlib.contextmanager
def catch_stop_signals() -> Iterator[list[str]]:
    """Turn SIGTERM and Ctrl-C into a wish that is granted after the step: save, and leave."""
    wish: list[str] = []
    before = {}

    def remember(number: int, frame: object) -> None:
        if wish:
            raise KeyboardInterrupt
        wish.append(STOP_MESSAGE)

    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(ValueError):  # not in the main thread: then somebody else handles signals
            before[number] = signal.signal(number, remember)
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
