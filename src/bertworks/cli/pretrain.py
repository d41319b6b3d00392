"""`bertworks pretrain`: a recipe and a corpus folder in, a run folder with a model out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from bertworks.cli.command import Command, command_app
from bertworks.cli.options import (
    BatchSize,
    Budget,
    CorpusFolder,
    Device,
    LearningRate,
    Overrides,
    Precision,
    RecipeArgument,
    RunFolder,
    Seed,
    Shard,
    Track,
    Vocabulary,
)
from bertworks.cli.printers import PRETRAIN_LOG_STEPS, PretrainPrinter, StatusLine
from bertworks.settings import recipe_path

if TYPE_CHECKING:
    from bertworks.commands.pretrain.request import PretrainRequest

app = command_app()


@app.command("pretrain", cls=Command)
def pretrain_command(
    recipe: RecipeArgument,
    data: CorpusFolder,
    output: RunFolder,
    budget: Budget = "",
    learning_rate: LearningRate = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    precision: Precision = None,
    device: Device = "auto",
    vocab: Vocabulary = None,
    shard: Shard = False,
    track: Track = None,
    overrides: Overrides = None,
) -> None:
    """Pretrain a model by RECIPE on a prepared corpus.

    Ctrl-C saves a checkpoint and exits with 130; the same command continues, and the result is bit-identical.
    """
    path = recipe_path(recipe)
    from bertworks.commands.pretrain.recipe import read_pretrain_recipe
    from bertworks.commands.pretrain.request import PretrainRequest

    options = {
        "budget": budget or None, "learning_rate": learning_rate, "batch_size": batch_size, "seed": seed,
        "precision": precision,
    }  # fmt: skip
    run(
        PretrainRequest(
            recipe=read_pretrain_recipe(path, options, overrides or []), corpus=data, output=output, vocabulary=vocab,
            device=device, shard=shard,
        ),
        track or [],
    )  # fmt: skip


def run(request: PretrainRequest, track: list[str]) -> None:
    """Run, print the events, and show how the first and the last model fill the same masks."""
    from bertworks.commands.pretrain.run import run_pretrain
    from bertworks.objectives.registry import objective_of
    from bertworks.parallel.process_group import is_main_process
    from bertworks.training.trackers import track_events

    is_interrupted = False
    with StatusLine(PRETRAIN_LOG_STEPS) as line:
        printer = PretrainPrinter(line, objective_of(request.recipe.objective).pair_task)
        for event in track_events(run_pretrain(request), track, request.output):
            printer.show(event)
            is_interrupted = is_interrupted or event.is_interrupted
    if is_main_process():
        _show_masked_samples(request.output)
    if is_interrupted:
        raise typer.Exit(130)


def _show_masked_samples(folder: Path) -> None:
    """Print the predictions of the first and the last model of the run for the same masked held-out sentences."""
    from rich.console import Console
    from rich.text import Text

    from bertworks.records import SampleRecord, read_records

    samples = [record for record in read_records(folder) if isinstance(record, SampleRecord)]
    if not samples:
        return
    steps = sorted({record.step for record in samples})
    console = Console(highlight=False)
    for last in [record for record in samples if record.step == steps[-1]][:4]:
        first = next(record for record in samples if record.text == last.text and record.step == steps[0])
        console.print(Text(f"\n{last.text}", style="bold"))
        for record in (first, last) if steps[0] != steps[-1] else (last,):
            candidates = ", ".join(f"{token} {probability:.1%}" for token, probability in record.predictions[0][:5])
            console.print(Text(f"  step {record.step:>7,}: {candidates}"))
