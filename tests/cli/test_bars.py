"""Bars on a terminal: what fits into a width, output files that stay untouched, and a clean end."""

import io
import re
import sys

import pytest

from bertworks.cli import bars
from bertworks.cli.bars import Bars, fit_parts
from bertworks.progress import Progress, ProgressDetail, begin_stage

BAR_CONSOLE = bars._BarConsole
PARTS = {"left": "9 s left", "detail": "mlm 2.310", "count": "5 of 10 steps", "rate": "1.0 steps/s"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    """Standard error as a terminal of 60 columns; standard output is a file."""
    for name in ("NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    terminal = Terminal()
    monkeypatch.setattr(bars, "_BarConsole", lambda stderr: BAR_CONSOLE(file=terminal))
    return terminal


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (80, "5 of 10 steps, 1.0 steps/s, 9 s left, mlm 2.310"),
        (34, "5 of 10 steps, 9 s left, mlm 2.310"),
        (33, "1.0 steps/s, 9 s left, mlm 2.310"),
        (19, "9 s left, mlm 2.310"),
        (8, "9 s left"),
        (3, ""),
    ],
)
def test_the_less_important_parts_are_left_out_first(width: int, text: str):
    assert fit_parts(PARTS, width) == text


def test_a_bar_has_the_stage_the_count_and_the_loss(terminal: Terminal):
    with Bars() as shown:
        shown.show(begin_stage("loading"))
        shown.show(Progress("finetune", 5, 10, "steps", detail=ProgressDetail(text="loss 0.250", seconds_left=9)))
    *_, loading, last = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", terminal.getvalue()).replace("\r", "\n").split("\n")[:-1]
    assert loading.startswith("loading ")
    assert re.fullmatch(r"finetune [━╸╺ ]+ 5 of 10 steps, 9 s left, loss 0\.250 *", last)
    assert len(last) <= 60


def test_a_file_of_output_gets_what_is_printed(terminal: Terminal, capsys: pytest.CaptureFixture[str]):
    with Bars() as shown:
        shown.show(Progress("predict", 1, 2, "texts"))
        sys.stdout.write('{"label": "good"}\n')
    assert capsys.readouterr().out == '{"label": "good"}\n'
    assert "label" not in terminal.getvalue()


def test_an_interrupt_leaves_the_cursor_visible_and_a_new_line(terminal: Terminal):
    def interrupt() -> None:
        with Bars() as shown:
            shown.show(Progress("predict", 1, 2, "texts"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert "\x1b[?25l" not in terminal.getvalue()
    assert terminal.getvalue().endswith("\n")


def test_the_next_run_of_a_sweep_starts_its_bar_again(terminal: Terminal):
    with Bars() as shown:
        for done in (9, 10, 1):
            shown.show(Progress("finetune", done, 10, "steps"))
    assert "1 of 10 steps" in terminal.getvalue().splitlines()[-1]
