"""Ctrl-C and SIGTERM in, a request to stop after the current step out."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

# The last message of a run that was stopped by a signal.
STOP_MESSAGE = "interrupted: saved; the same command resumes"


@contextlib.contextmanager
def catch_stop_signals() -> Iterator[list[str]]:
    """Yield a list that gets STOP_MESSAGE on SIGTERM or Ctrl-C; a second signal interrupts at once."""
    messages: list[str] = []
    previous_handlers = {}

    def request_stop(number: int, frame: object) -> None:
        if messages:
            raise KeyboardInterrupt
        messages.append(STOP_MESSAGE)

    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(ValueError):  # only the main thread can set handlers
            previous_handlers[number] = signal.signal(number, request_stop)
    try:
        yield messages
    finally:
        for number, handler in previous_handlers.items():
            # An abandoned run may be closed at any time, also while a later one handles signals.
            if signal.getsignal(number) is request_stop:
                signal.signal(number, handler)
