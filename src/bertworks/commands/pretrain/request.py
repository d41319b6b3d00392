"""What a pretraining run takes and reports: PretrainRequest in, a stream of TrainEvents out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import nn

from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.reading import convert_paths
from bertworks.records import HeldOutRecord
from bertworks.sampling.batch import Batch
from bertworks.training.loop import Step
from bertworks.training.optimizer import BertAdam


class StepObserver(Protocol):
    """Sees the batches of every step, and the parameters and optimizer state after it (see `verify_resume`)."""

    def on_batches(self, batches: Sequence[Batch]) -> None: ...

    def on_step(self, step: int, module: nn.Module, optimizer: BertAdam) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainRequest:
    """A run to start or to continue.

    vocabulary   one of the corpus, by its path or hash, if it has several
    init_model   an existing model to continue from: a folder, or a name on the hub
    shard        shard the model over the processes (FSDP) instead of replicating it
    stop_after   end this call after so many steps (for tests)
    """

    recipe: PretrainRecipe
    corpus: Path
    output: Path
    vocabulary: str | None = None
    init_model: str | None = None
    device: str = "auto"
    shard: bool = False
    stop_after: int | None = None
    observer: StepObserver | None = None

    def __post_init__(self) -> None:
        convert_paths(self, "corpus", "output")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainEvent:
    """One event of a run: a step, a held-out evaluation, a saved checkpoint, a warning or a note.

    With a step: the number of all steps (None: a time budget decides), the estimated seconds left, and the losses to
    compare it with (unigram entropy, uniform loss ln V).
    `is_interrupted` marks the note of a run that was asked to stop.
    """

    step: Step | None = None
    num_steps: int | None = None
    seconds_left: float = 0.0
    reference_losses: tuple[float, float] = (math.nan, math.nan)
    held_out: HeldOutRecord | None = None
    checkpoint_path: Path | None = None
    warning: str = ""
    note: str = ""
    is_interrupted: bool = False
