"""The interface of a fine-tuning run: a FinetuneRequest in, a stream of FinetuneEvents out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.datasets.published import dataset_of
from bertworks.datasets.translations import target_file
from bertworks.reading import convert_paths
from bertworks.records import ScoreRecord
from bertworks.training.loop import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneRequest:
    """What to fine-tune.

    task            the name of a task; `settings` are passed to it (labels, metrics)
    model           a folder or a name on the hub; "": train a new model, of the recipe's `model` and `vocabulary`
    columns         by split ("" for all): the names of columns by role
    feature_folder  where features of a frozen model are cached; several runs may share it. Default: the run folder
    stop_after      stop after this many steps of a phase in this call (for tests)
    """

    task: str
    model: str
    train: Path
    output: Path
    dev: Path | None = None
    test: Path | None = None
    recipe: FinetuneRecipe = field(default_factory=FinetuneRecipe)
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"
    feature_folder: Path | None = None
    stop_after: int | None = None
    vocabulary: Path | None = None

    def __post_init__(self) -> None:
        convert_paths(self, "train", "output", "dev", "test", "feature_folder", "vocabulary")

    def columns_of(self, split: str) -> Mapping[str, str]:
        return {**self.columns.get("", {}), **self.columns.get(split, {})}

    @property
    def is_symmetric(self) -> bool:
        """Whether the order of the two texts of an example has no meaning, by what is known of a published dataset."""
        return "set" in self.settings and dataset_of(self.settings["set"]).is_symmetric

    @property
    def files(self) -> Iterator[Path]:
        """All labelled files, including files of target translations."""
        for split in ("train", "dev", "test"):
            path: Path | None = getattr(self, split)
            targets = None if path is None else target_file(path, self.columns_of(split))
            yield from (file for file in (path, targets) if file is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneEvent:
    """What happened: a step, scores of a split, a warning or a note; at the end, the folder of the fine-tuned model.

    phase            of a step: "adapt" for the language modeling on the training texts, "finetune" for the task
    num_steps        of that phase
    stage            what is done now that has no steps: "scoring dev"
    is_interrupted   marks the note of a run that was asked to stop
    """

    step: Step | None = None
    phase: str = "finetune"
    num_steps: int = 0
    stage: str = ""
    score: ScoreRecord | None = None
    warning: str = ""
    note: str = ""
    model_folder: Path | None = None
    is_interrupted: bool = False
