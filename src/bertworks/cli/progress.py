"""Progress for people: events in, a bar on a terminal or plain lines elsewhere out.

A bar is drawn only where it can be redrawn and nobody declined it: on a terminal, without NO_COLOR, CI or TERM=dumb.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bertworks.cli.console import warn
from bertworks.messages import fill, localize
from bertworks.progress import Progress, is_live

# Seconds between the lines of a log.
_LOG_SECONDS = 5.0
# Rates and times left that follow from less time than this are noise.
_MIN_SECONDS = 0.5


@contextlib.contextmanager
def show_progress(log_stages: bool = False) -> Iterator[Callable[[Progress], None]]:
    """Yield a function that shows events: a bar on a terminal, otherwise a line every few seconds.

    `log_stages`: a line for every stage that counts nothing, not only if it begins after some seconds.
    """
    if not is_live(sys.stderr):
        yield _ProgressPrinter(0.0 if log_stages else _LOG_SECONDS).show
        return
    from bertworks.cli.bars import Bars

    with Bars() as bars:
        yield bars.show


@dataclass(slots=True)
class StageClock:
    """The last event of a stage, and the count and time of its first, which may be that of a resumed run."""

    event: Progress
    first_done: int = field(init=False)
    start: float = field(init=False)
    end: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.first_done, self.start = self.event.done, time.monotonic()

    def stop(self) -> None:
        """End the stage: its time stands still from now on."""
        self.end = self.end or time.monotonic()

    @property
    def seconds(self) -> float:
        return (self.end or time.monotonic()) - self.start

    def rate(self) -> float | None:
        """Return the units per second since the first event; None if it is not known yet."""
        count = self.event.done - self.first_done
        return count / self.seconds if self.seconds > _MIN_SECONDS and count > 0 else None

    def seconds_left(self) -> float | None:
        """Return the estimate of the run itself, or that by the rate so far; None at the end, or if it is not known."""
        if self.event.done == self.event.total:
            return None
        if self.event.detail.seconds_left is not None:
            return self.event.detail.seconds_left
        rate, total = self.rate(), self.event.total
        return (total - self.event.done) / rate if rate and total else None

    def parts(self) -> dict[str, str]:
        """Return what a line shows, the most important first: "left", "detail", "count", "rate"."""
        event, rate, seconds_left = self.event, self.rate(), self.seconds_left()
        if not event.is_counted:
            return {"elapsed": format_duration(self.seconds)}
        scale, unit, digits = (1e6, "MB", 1) if event.unit == "bytes" else (1.0, event.unit, 0)
        done = f"{event.done / scale:,.{digits}f}"
        total = "" if event.total is None else f"{event.total / scale:,.{digits}f}"
        unit = localize(unit)
        parts = {
            "left": "" if seconds_left is None else fill("{} left", format_duration(seconds_left)),
            "detail": event.detail.text,
            "count": fill("{} of {} {}", done, total, unit) if total else f"{done} {unit}",
            "rate": "" if rate is None else f"{rate / scale:,.1f} {unit}/s",
        }
        return {name: text for name, text in parts.items() if text}


class _ProgressPrinter:
    """Prints "reading: 34.0 of 68.0 MB, 12.1 MB/s, 3 s left" every few seconds, and a stage without a count once."""

    def __init__(self, stage_seconds: float) -> None:
        self._clock: StageClock | None = None
        self._stage_seconds = stage_seconds
        self._last = time.monotonic()

    def show(self, event: Progress) -> None:
        now = time.monotonic()
        if self._clock is None or event.stage != self._clock.event.stage:
            self._clock = StageClock(event)
            if event.is_counted:
                self._last = now
            elif now - self._last >= self._stage_seconds:
                self._last = now
                warn(event.stage)
        self._clock.event = event
        if event.is_counted and (event.done == event.total or now - self._last >= _LOG_SECONDS):
            self._last = now
            parts = self._clock.parts()
            text = ", ".join(parts[name] for name in ("count", "rate", "left", "detail") if name in parts)
            warn(f"{localize(event.stage)}: {text}")


def format_duration(seconds: float) -> str:
    """Return a duration as people write it: 40 s, 12 min, 3 h 20 min, 5 d 4 h."""
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86400
    if minutes < 2:
        return f"{seconds:.0f} s"
    if hours < 2:
        return f"{minutes:.0f} min"
    if days < 2:
        return f"{int(hours)} h {int(minutes) % 60} min"
    return f"{int(days)} d {int(hours) % 24} h"
