"""Progress for people: events in, a bar on a terminal or plain lines elsewhere out."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from bertworks.progress import Progress

# Seconds between the lines of a log.
_LOG_SECONDS = 5.0


@contextlib.contextmanager
def show_progress() -> Iterator[Callable[[Progress], None]]:
    """Yield a function that shows events: a bar on a terminal, otherwise a line every few seconds."""
    if sys.stderr.isatty():
        with _show_bars() as on_progress:
            yield on_progress
    else:
        yield _ProgressPrinter().show


@contextlib.contextmanager
def _show_bars() -> Iterator[Callable[[Progress], None]]:
    import rich.progress
    from rich.console import Console

    columns = (
        rich.progress.TextColumn("{task.description:<10}"),
        rich.progress.BarColumn(),
        rich.progress.TextColumn("{task.fields[status]}"),
        rich.progress.TimeRemainingColumn(),
    )
    with rich.progress.Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, tuple[rich.progress.TaskID, float]] = {}

        def on_progress(event: Progress) -> None:
            if event.stage not in tasks:
                tasks[event.stage] = (bars.add_task(event.stage, total=event.total, status=""), time.monotonic())
            task, start = tasks[event.stage]
            bars.update(task, completed=event.done, status=_format_progress(event, time.monotonic() - start))

        yield on_progress


class _ProgressPrinter:
    def __init__(self) -> None:
        self._stage = ""
        self._start = self._last = time.monotonic()

    def show(self, event: Progress) -> None:
        now = time.monotonic()
        if event.stage != self._stage:
            self._stage, self._start, self._last = event.stage, now, now
        if event.done == event.total or now - self._last >= _LOG_SECONDS:
            self._last = now
            print(f"{event.stage}: {_format_progress(event, now - self._start)}", file=sys.stderr, flush=True)


def _format_progress(event: Progress, seconds: float) -> str:
    """Return "34.0 of 68.0 MB, 12.1 MB/s, 3 s left"."""
    scale, unit = (1e6, "MB") if event.unit == "bytes" else (1, event.unit)
    digits = 1 if event.unit == "bytes" else 0
    text = f"{event.done / scale:,.{digits}f}"
    if event.total is not None:
        text += f" of {event.total / scale:,.{digits}f}"
    text += f" {unit}"
    if seconds > 0.5 and event.done:
        throughput = event.done / seconds
        text += f", {throughput / scale:,.1f} {unit}/s"
        if event.total is not None and event.done < event.total:
            text += f", {(event.total - event.done) / throughput:,.0f} s left"
    return text
