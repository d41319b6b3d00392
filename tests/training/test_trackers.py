"""Experiment trackers without their packages: which there are, what is missing, and the names of settings.

With the packages, `bertworks.finetune(…, track=["wandb", "mlflow"])` writes offline runs into the run folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bertworks.errors import MissingDependencyError, SettingsError
from bertworks.records import ScoreRecord
from bertworks.training.trackers import TRACKERS, flatten, track_records

RECORD = ScoreRecord(3, "dev", {"accuracy": 0.5})


@pytest.mark.parametrize(("name", "module"), [("wandb", "wandb"), ("mlflow", "mlflow")])
def test_a_missing_tracker_names_its_extra(name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, module, None)  # importing it fails
    (tmp_path / "recipe.toml").write_text("seed = 1\n")
    with track_records([name], tmp_path) as add, pytest.raises(MissingDependencyError, match=rf"bertworks\[{name}\]"):
        add(RECORD)


def test_an_unknown_tracker_is_answered_with_the_known_ones(tmp_path: Path):
    assert list(TRACKERS) == ["wandb", "mlflow"]
    message = "there is no tracker 'comet'; choose one of: wandb, mlflow"
    with pytest.raises(SettingsError, match=message), track_records(["comet"], tmp_path):
        pass


def test_without_trackers_records_go_nowhere(tmp_path: Path):
    with track_records([], tmp_path) as add:
        add(RECORD)
    assert list(tmp_path.iterdir()) == []


def test_settings_have_dotted_names():
    settings = {"seed": 1, "optimizer": {"name": "adam", "betas": [0.9, 0.98]}}
    assert dict(flatten(settings)) == {"seed": 1, "optimizer.name": "adam", "optimizer.betas": [0.9, 0.98]}
