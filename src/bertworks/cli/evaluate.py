"""`bertworks evaluate`: a fine-tuned model and labelled files in, its scores out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertworks.cli.command import Command, command_app
from bertworks.cli.console import say
from bertworks.cli.options import (
    Engine,
    FinetunedModel,
    LabelColumn,
    PairColumn,
    Precision,
    TargetsSuffix,
    TextColumn,
    columns_of,
)
from bertworks.cli.printers import print_warnings
from bertworks.cli.progress import show_progress
from bertworks.errors import SettingsError

if TYPE_CHECKING:
    from rich.table import Table

app = command_app()


@app.command("evaluate", cls=Command)
def evaluate_command(
    model: FinetunedModel,
    files: Annotated[
        list[str],
        typer.Argument(
            help="Labelled files of the model's task; with --data one published dataset, such as glue/MNLI.",
            metavar="FILE…",
        ),
    ],
    data: Annotated[Path | None, typer.Option(help="Folder of a published dataset.")] = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    targets: TargetsSuffix = None,
    engine: Engine = None,
    precision: Precision = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; for several files, one by file.")] = (
        False
    ),
) -> None:
    """Score MODEL on labelled FILEs, side by side."""
    from bertworks.commands.evaluate import LabelledFile, dataset_files, evaluate_files
    from bertworks.inference.finetuned import load_predictor

    columns = columns_of(text=text, pair=pair, label=label, targets=targets)
    if data is None:
        labelled = [LabelledFile(file, Path(file), columns) for file in files]
    elif len(files) == 1:
        labelled = dataset_files(files[0], data)
    else:
        raise SettingsError(f"--data {data} is the folder of one published dataset; name only that dataset")
    predictor = load_predictor(model, engine=engine, precision=precision)
    with show_progress() as on_progress:
        results = list(evaluate_files(predictor, labelled, on_progress))
    for result in results:
        print_warnings(result.warnings, f"{result.name}: ")
    scores = {result.name: dict(result.scores.metrics) for result in results}
    if as_json:
        print(json.dumps(scores if len(scores) > 1 else scores[results[0].name]))
        return
    for result in results:
        for name, count in result.counts.items():
            say(f"{count:,} {name}")
    if len(scores) > 1:
        from rich.console import Console

        Console(highlight=False).print(score_table(scores))
        return
    for name, value in results[0].scores.metrics.items():
        say(f"{name:<20} {value:.4f}")


def score_table(scores: Mapping[str, Mapping[str, float]]) -> Table:
    """Return a table with a column per file or split and a row per metric."""
    from rich.table import Table

    table = Table("", *scores, box=None)
    for name in dict.fromkeys(name for metrics in scores.values() for name in metrics):
        cells = (f"{metrics[name]:.4f}" if name in metrics else "–" for metrics in scores.values())
        table.add_row(name, *cells)
    return table
