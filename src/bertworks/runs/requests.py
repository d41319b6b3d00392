"""What is asked of a fine-tuning run, and what it tells: FinetuneRequest in, a stream of Told out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertworks.runs.tuning import Tuning
from bertworks.training.loop import Step
from bertworks.training.records import ScoreRecord


@dataclass(frozen=True, slots=True)
class FinetuneRequest:
    """What to fine-tune. `columns` names columns, `settings` go to the task (labels, metrics).

    Features of a frozen model are kept in `kept`, where several runs may share them; else in the run folder.
    `stop_after` ends the run after so many steps in this call (for tests).
    """

    task: str
    model: str
    train: Path
    out: Path
    dev: Path | None = None
    test: Path | None = None
    tuning: Tuning = field(default_factory=Tuning)
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by split; "" for all
    settings: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"
    kept: Path | None = None
    stop_after: int | None = None

    def columns_of(self, split: str) -> Mapping[str, str]:
        return {**self.columns.get("", {}), **self.columns.get(split, {})}


@dataclass(frozen=True, slots=True)
class Told:
    """Something to tell a person: a step, scores of a split, a warning or a note; at the end, the sealed folder."""

    step: Step | None = None
    num_steps: int = 0
    score: ScoreRecord | None = None
    warning: str = ""
    note: str = ""
    sealed: Path | None = None
