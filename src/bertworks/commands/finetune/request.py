"""What is asked of a fine-tuning run, and what it tells: FinetuneRequest in, a stream of Told out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.datasets.translations import target_file
from bertworks.records import ScoreRecord
from bertworks.training.loop import Step


@dataclass(frozen=True, slots=True)
class FinetuneRequest:
    """What to fine-tune. `columns` names columns, `settings` go to the task (labels, metrics).

    Where `model` is "", a new one begins: what the tuning says of it, with a `vocabulary`.
    Features of a frozen model are kept in `kept`, where several runs may share them; else in the run folder.
    `stop_after` ends the run after so many steps in this call (for tests).
    """

    task: str
    model: str
    train: Path
    output: Path
    dev: Path | None = None
    test: Path | None = None
    recipe: FinetuneRecipe = field(default_factory=FinetuneRecipe)
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by split; "" for all
    settings: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"
    feature_folder: Path | None = None
    stop_after: int | None = None
    vocabulary: Path | None = None

    def columns_of(self, split: str) -> Mapping[str, str]:
        return {**self.columns.get("", {}), **self.columns.get(split, {})}

    @property
    def files(self) -> Iterator[Path]:
        """All labelled files, those too that hold the translations of others."""
        for split in ("train", "dev", "test"):
            path: Path | None = getattr(self, split)
            other = None if path is None else target_file(path, self.columns_of(split))
            yield from (one for one in (path, other) if one is not None)


@dataclass(frozen=True, slots=True)
class FinetuneEvent:
    """Something to tell a person: a step, scores of a split, a warning or a note; at the end, the sealed folder."""

    step: Step | None = None
    num_steps: int = 0
    score: ScoreRecord | None = None
    warning: str = ""
    note: str = ""
    model_folder: Path | None = None
