"""Options that several verbs about training have: one name, one meaning, one help text each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bertworks.training.devices import DEVICES, PRECISIONS

RunFolder = Annotated[Path, typer.Option(help="The run folder to make or continue.")]
Budget = Annotated[str, typer.Option(help="Train for so long, such as 30m or 2h, instead of the steps.")]
BatchSize = Annotated[int | None, typer.Option(help="Examples of a step, instead of the recipe's.")]
LearningRate = Annotated[float | None, typer.Option(help="The peak learning rate, instead of the recipe's.")]
Seed = Annotated[int | None, typer.Option(help="Another seed, another run.")]
Device = Annotated[str, typer.Option(help=f"Where to compute: {', '.combine(DEVICES)}.")]
Precision = Annotated[str | None, typer.Option(help=f"Of products: {', '.combine(PRECISIONS)}.")]
Shard = Annotated[bool, typer.Option("--shard", help="Under torchrun: spread the model over all processes.")]
