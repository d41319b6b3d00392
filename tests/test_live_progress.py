"""The bar of a run: what it says after steps and scores, how often it is drawn, and where there is none."""

from __future__ import annotations

import io
import math
import sys

import pytest

from bertworks.commands.finetune.request import FinetuneEvent
from bertworks.commands.pretrain.request import TrainEvent
from bertworks.live_progress import EventBar, bar_html, is_notebook, show_events
from bertworks.records import HeldOutRecord, ScoreRecord
from bertworks.training.loop import Step


def step_of(number: int, seconds: float) -> Step:
    return Step(
        number=number, phase=0, losses={"task": 0.5}, learning_rate=1e-3, grad_norm=1.0, seconds=seconds, num_tokens=0
    )


def test_a_bar_shows_steps_and_scores_of_fine_tuning():
    drawn: list[tuple[float, str]] = []
    times = iter(range(100))
    bar = EventBar(draw=lambda ratio, text: drawn.append((ratio, text)), clock=lambda: next(times))
    bar.show(FinetuneEvent(step=step_of(1, 2.0), num_steps=4))
    bar.show(FinetuneEvent(note="nothing to draw"))
    bar.show(FinetuneEvent(score=ScoreRecord(1, "dev", {"accuracy": 0.75})))
    bar.show(FinetuneEvent(step=step_of(4, 8.0), num_steps=4))
    assert drawn == [
        (0.25, "finetune, step 1 of 4, loss 0.500, 6.0 s left"),
        (0.25, "finetune, step 1 of 4, loss 0.500, 6.0 s left; dev: accuracy 0.750"),
        (1.0, "finetune, step 4 of 4, loss 0.500; dev: accuracy 0.750"),
    ]


def test_a_bar_of_pretraining_goes_by_time():
    drawn: list[tuple[float, str]] = []
    bar = EventBar(draw=lambda ratio, text: drawn.append((ratio, text)))
    bar.show(TrainEvent(step=step_of(3, 10.0), seconds_left=30.0))
    held_out = HeldOutRecord(step=3, phase="1", losses={"mlm": 2.5}, perplexity=math.e, accuracy=0.1)
    bar.show(TrainEvent(held_out=held_out))
    assert drawn[-1] == (0.25, "pretrain, step 3, loss 0.500, 30 s left; held-out loss 2.500")


def test_a_bar_of_pretraining_goes_by_steps_where_their_number_is_known():
    drawn: list[tuple[float, str]] = []
    bar = EventBar(draw=lambda ratio, text: drawn.append((ratio, text)))
    bar.show(TrainEvent(step=step_of(1, 2.0), num_steps=4, seconds_left=6.0))
    assert drawn == [(0.25, "pretrain, step 1 of 4, loss 0.500, 6.0 s left")]


def test_a_bar_is_not_drawn_more_often_than_people_see():
    drawn: list[float] = []
    bar = EventBar(draw=lambda ratio, text: drawn.append(ratio), clock=lambda: 100.0)
    for number in range(1, 11):
        bar.show(FinetuneEvent(step=step_of(number, number), num_steps=10))
    assert drawn == [0.1, 1.0]


def test_nothing_is_shown_where_nobody_looks(capsys: pytest.CaptureFixture[str]):
    assert not is_notebook()
    with show_events() as show:
        assert show is None
    with show_events(True) as show:
        assert show is not None
        show(FinetuneEvent(step=step_of(4, 8.0), num_steps=4))
    assert "finetune, step 4 of 4, loss 0.500" in capsys.readouterr().err


def test_the_text_beside_a_bar_is_escaped():
    assert bar_html(0.5, "a < b") == '<div><progress value="0.5000" max="1"></progress> a &lt; b</div>'


def test_nothing_is_shown_on_a_terminal_if_someone_asked_for_less(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    with show_events() as show:
        assert show is None


def test_what_is_printed_under_a_bar_stays_in_a_file(monkeypatch: pytest.MonkeyPatch):
    output = io.StringIO()  # no terminal
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes standard error for one
    with show_events(True):
        sys.stdout.write("a result\n")
    assert output.getvalue() == "a result\n"
