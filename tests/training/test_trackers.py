"""Experiment trackers without their packages: which there are, what is missing, and the names of settings.

With the packages, `bertworks.finetune(…, track=["wandb", "mlflow"])` writes offline runs into the run folder.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bertworks.commands.finetune.request import FinetuneEvent
from bertworks.errors import MissingDependencyError, SettingsError
from bertworks.records import RunRecord, ScoreRecord
from bertworks.training.loop import Step
from bertworks.training.trackers import TRACKERS, flatten, track_events, track_records

RECORD = ScoreRecord(3, "dev", {"accuracy": 0.5})


@pytest.mark.parametrize(("name", "module"), [("wandb", "wandb"), ("mlflow", "mlflow")])
def test_a_missing_tracker_names_its_extra(name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, module, None)  # importing it fails
    with (
        pytest.raises(MissingDependencyError, match=rf"bertworks\[{name}\]"),  # before the run begins
        track_records([name], tmp_path),
    ):
        pass


def test_an_unknown_tracker_is_answered_with_the_known_ones(tmp_path: Path):
    assert list(TRACKERS) == ["wandb", "mlflow"]
    message = "there is no tracker 'comet'; choose one of: wandb, mlflow"
    with pytest.raises(SettingsError, match=message), track_records(["comet"], tmp_path):
        pass


class _Tracker:
    """Keeps what a tracker gets."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.settings, self.records, self.is_closed = settings, list[RunRecord](), False
        _Tracker.last = self

    last: _Tracker

    def add(self, record: RunRecord) -> None:
        self.records.append(record)

    def close(self) -> None:
        self.is_closed = True


def step_of(number: int) -> Step:
    return Step(
        number=number, phase=0, losses={"task": 0.5}, learning_rate=1e-3, grad_norm=1.0, seconds=1.0, num_tokens=0
    )


def test_a_tracker_gets_steps_and_scores_but_not_the_steps_of_an_adaptation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(TRACKERS, "wandb", _Tracker)
    monkeypatch.setitem(sys.modules, "wandb", sys)  # it counts as installed
    (tmp_path / "recipe.toml").write_text("seed = 1\n")
    events = [
        FinetuneEvent(note="no record"),
        FinetuneEvent(step=step_of(1), phase="adapt"),
        FinetuneEvent(step=step_of(1)),
        FinetuneEvent(score=RECORD),
    ]
    assert list(track_events(iter(events), ["wandb"], tmp_path)) == events
    assert [type(record).__name__ for record in _Tracker.last.records] == ["StepRecord", "ScoreRecord"]
    assert _Tracker.last.settings == {"seed": 1}
    assert _Tracker.last.is_closed


def test_only_the_main_process_of_several_tracks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("bertworks.training.trackers.is_main_process", lambda: False)
    event = FinetuneEvent(step=step_of(1))
    assert list(track_events(iter([event]), ["wandb"], tmp_path)) == [event]


def test_without_trackers_records_go_nowhere(tmp_path: Path):
    with track_records([], tmp_path) as add:
        add(RECORD)
    assert list(tmp_path.iterdir()) == []


def test_settings_have_dotted_names():
    settings = {"seed": 1, "optimizer": {"name": "adam", "betas": [0.9, 0.98]}}
    assert dict(flatten(settings)) == {"seed": 1, "optimizer.name": "adam", "optimizer.betas": [0.9, 0.98]}
