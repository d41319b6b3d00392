"""Bars on a terminal: progress events in, one line per stage out: its name, a bar, count, rate, time left and loss."""

from __future__ import annotations

import sys

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

from bertworks.cli.progress import StageClock
from bertworks.messages import localize
from bertworks.progress import Progress

_MAX_STAGE_WIDTH = 24
# A bar is at least so wide, with the gaps around it.
_BAR_WIDTH = 10


class Bars:
    """A bar for each stage on the terminal of standard error. A context manager; what is printed appears above.

    Standard output passes through the bars only if it is the terminal, too: a file gets what is printed as it is.
    """

    def __init__(self) -> None:
        console = _BarConsole(stderr=True)
        columns = (
            TextColumn("{task.description}", markup=False, table_column=Column(max_width=_MAX_STAGE_WIDTH)),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            _StatusColumn(console),
        )
        self._bars = RichProgress(*columns, console=console, redirect_stdout=sys.stdout.isatty(), expand=True)
        self._stages: dict[str, tuple[TaskID, StageClock]] = {}

    def __enter__(self) -> Bars:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_uncounted()
        self._bars.stop()

    def show(self, event: Progress) -> None:
        """Show the progress of a stage; a stage that counts nothing ends when the next one begins."""
        task, clock = self._stages.get(event.stage, (None, None))
        if task is None or clock is None:
            self._end_uncounted()
            clock = StageClock(event)
            task = self._bars.add_task(localize(event.stage), total=event.total, clock=clock)
        elif event.done < clock.event.done:  # the next run of a sweep
            clock = StageClock(event)
        clock.event = event
        if event.done == event.total:
            clock.stop()
        self._stages[event.stage] = (task, clock)
        self._bars.update(task, completed=event.done, total=event.total, clock=clock)

    def _end_uncounted(self) -> None:
        for task, clock in self._stages.values():
            if not clock.event.is_counted:
                clock.stop()
                self._bars.update(task, completed=1, total=1)


class _BarConsole(Console):
    """A console that never hides the cursor: a killed process could not show it again."""

    def show_cursor(self, show: bool = True) -> bool:
        return False


class _StatusColumn(ProgressColumn):
    """Count, rate, time left and loss; on a narrow terminal the less important of them are left out."""

    def __init__(self, console: Console) -> None:
        super().__init__(Column(no_wrap=True))
        self._console = console

    def render(self, task: Task) -> Text:
        clock: StageClock = task.fields["clock"]
        width = self._console.width - min(cell_len(task.description), _MAX_STAGE_WIDTH) - _BAR_WIDTH
        return Text(fit_parts(clock.parts(), width))


def fit_parts(parts: dict[str, str], width: int) -> str:
    """Join the parts of a status that fit into a width: the most important ones, in the order of reading."""
    chosen: list[str] = []
    for name, text in parts.items():
        if cell_len(", ".join([*(parts[other] for other in chosen), text])) <= width:
            chosen.append(name)
    order = ("count", "rate", "left", "elapsed", "detail")
    return ", ".join(parts[name] for name in order if name in chosen)
