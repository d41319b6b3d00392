"""The events of a run in; warnings, records for trackers and a progress bar out, in a notebook or on a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from bertworks.progress import is_live
from bertworks.reports.page import format_duration

# Seconds between two updates of a bar.
_UPDATE_SECONDS = 0.2

# Draws a bar: how much is done, from 0 to 1, and what stands beside it.
Draw = Callable[[float, str], None]
EventCallback = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class RunWatch:
    """Who watches a run: a callback, a progress bar, and experiment trackers."""

    on_event: EventCallback | None
    progress: bool | None
    track: str | Sequence[str] = ()

    def consume(self, events: Iterator[Any], folder: Path) -> None:
        """Run to the end; warnings become Python warnings, and an interrupted run raises KeyboardInterrupt."""
        from bertworks.training.trackers import track_events

        names = [self.track] if isinstance(self.track, str) else list(self.track)
        shown = False if self.on_event is not None and self.progress is None else self.progress
        is_interrupted = False
        with show_events(shown) as show:
            for event in track_events(events, names, folder):
                is_interrupted = is_interrupted or event.is_interrupted
                for receive in (self.on_event, show):
                    if receive is not None:
                        receive(event)
                if self.on_event is None and event.warning:
                    warnings.warn(event.warning, stacklevel=5)
        if is_interrupted:
            raise KeyboardInterrupt


@contextlib.contextmanager
def show_events(show: bool | None = None) -> Iterator[Callable[[Any], None] | None]:
    """Yield a function that shows the events of a run; None if nobody looks, and `show` does not insist."""
    if show is False or not (show or is_notebook() or is_live(sys.stderr)):
        yield None
    elif is_notebook():
        yield EventBar(draw=_notebook_bar()).show
    else:
        with _terminal_bar() as draw:
            yield EventBar(draw=draw).show


def is_notebook() -> bool:
    """Whether this is a notebook, which shows HTML."""
    if "IPython" not in sys.modules:
        return False
    return hasattr(sys.modules["IPython"].get_ipython(), "kernel")


@dataclass(slots=True, kw_only=True)
class EventBar:
    """Turns the events of pretraining or fine-tuning into updates of a bar."""

    draw: Draw
    clock: Callable[[], float] = time.monotonic
    _scores: str = ""
    _ratio: float = 0.0
    _line: str = ""
    _last_update: float = field(default=-_UPDATE_SECONDS)

    def show(self, event: Any) -> None:
        """Show a step or a score; other events change nothing."""
        if event.step is not None:
            self._ratio, self._line = _describe_step(event)
            if self._ratio < 1 and self.clock() - self._last_update < _UPDATE_SECONDS:
                return
        elif (scores := _describe_scores(event)) is not None:
            self._scores = scores
        else:
            return
        self._last_update = self.clock()
        self.draw(self._ratio, f"{self._line}{self._scores}")


def _describe_step(event: Any) -> tuple[float, str]:
    """Return how much of the run is done, and its step, loss and time left."""
    step, num_steps = event.step, event.num_steps
    if num_steps:
        ratio, total = step.number / num_steps, f" of {num_steps:,}"
        seconds_left = step.seconds / step.number * (num_steps - step.number)
    else:  # a pretraining with a budget of time
        seconds_left, total = event.seconds_left, ""
        ratio = step.seconds / max(step.seconds + seconds_left, 1e-9)
    time_left = f", {format_duration(seconds_left)} left" if ratio < 1 else ""
    phase = getattr(event, "phase", "pretrain")
    return ratio, f"{phase}, step {step.number:,}{total}, loss {sum(step.losses.values()):.3f}{time_left}"


def _describe_scores(event: Any) -> str | None:
    """Return the scores of dev or of held-out text; None if the event has none."""
    if (score := getattr(event, "score", None)) is not None:
        values = ", ".join(f"{name} {value:.3f}" for name, value in score.metrics.items())
        return f"; {score.split}: {values}"
    if (held_out := getattr(event, "held_out", None)) is not None:
        return f"; held-out loss {held_out.loss:.3f}"
    return None


def _notebook_bar() -> Draw:
    from IPython.display import HTML, display

    handle = display(HTML(bar_html(0.0, "")), display_id=True)
    return lambda ratio, text: handle.update(HTML(bar_html(ratio, text)))


def bar_html(ratio: float, text: str) -> str:
    """Return a bar with a text beside it."""
    return f'<div><progress value="{ratio:.4f}" max="1"></progress> {escape(text)}</div>'


@contextlib.contextmanager
def _terminal_bar() -> Iterator[Draw]:
    import rich.progress
    from rich.console import Console

    columns = (rich.progress.BarColumn(), rich.progress.TextColumn("{task.description}", markup=False))
    console = Console(stderr=True)
    # What is printed passes through the bar only on a terminal: a file gets it as it is.
    with rich.progress.Progress(*columns, console=console, redirect_stdout=sys.stdout.isatty()) as bars:
        task = bars.add_task("", total=1.0)
        yield lambda ratio, text: bars.update(task, completed=ratio, description=text)
