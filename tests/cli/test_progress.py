"""Progress: when a bar is drawn, what a line says, and rates of resumed work."""

import io

import pytest

from bertworks.cli import progress
from bertworks.cli.progress import StageClock, format_duration, show_progress
from bertworks.progress import Progress, ProgressDetail, begin_stage, is_live


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the code sees: a list of one number, to be changed."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"CI": "true"}, False), ({"TERM": "dumb"}, False)],
)
def test_a_bar_is_drawn_on_a_terminal_unless_someone_asked_for_less(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: bool
):
    for name in ("NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert is_live(Terminal()) is expected
    assert not is_live(io.StringIO())


def test_the_rate_of_resumed_work_counts_from_its_first_event(clock: list[float]):
    stage = StageClock(Progress("embed", 1000, 2000, "texts"))
    clock[0] += 10
    stage.event = Progress("embed", 1100, 2000, "texts")
    assert stage.parts() == {"left": "90 s left", "count": "1,100 of 2,000 texts", "rate": "10.0 texts/s"}


def test_the_estimate_of_the_run_itself_wins_and_the_loss_is_shown(clock: list[float]):
    detail = ProgressDetail(text="mlm 2.310", seconds_left=12_000)
    stage = StageClock(Progress("pretrain", 5, 10, "steps", detail=detail))
    assert stage.parts() == {"left": "3 h 20 min left", "detail": "mlm 2.310", "count": "5 of 10 steps"}


def test_a_stopped_stage_keeps_its_time(clock: list[float]):
    stage = StageClock(begin_stage("loading"))
    clock[0] += 3
    stage.stop()
    clock[0] += 50
    assert stage.parts() == {"elapsed": "3 s"}


def test_off_a_terminal_lines_come_every_five_seconds_and_at_the_end(
    clock: list[float], capsys: pytest.CaptureFixture[str]
):
    with show_progress() as on_progress:
        on_progress(begin_stage("opening"))
        clock[0] += 6
        on_progress(begin_stage("loading"))
        for done in (10e6, 20e6, 30e6, 40e6):
            on_progress(Progress("reading", int(done), 40_000_000, "bytes"))
            clock[0] += 4
    assert capsys.readouterr().err.splitlines() == [
        "loading",
        "reading: 30.0 of 40.0 MB, 2.5 MB/s, 4 s left",
        "reading: 40.0 of 40.0 MB, 2.5 MB/s",
    ]


def test_every_stage_is_a_line_if_that_is_wanted(capsys: pytest.CaptureFixture[str]):
    with show_progress(log_stages=True) as on_progress:
        on_progress(begin_stage("timing tiny"))
        on_progress(begin_stage("timing mini"))
    assert capsys.readouterr().err == "timing tiny\ntiming mini\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(119, "119 s"), (125, "2 min"), (12_000, "3 h 20 min"), (446_400, "5 d 4 h")]
)
def test_durations(seconds: float, text: str):
    assert format_duration(seconds) == text
