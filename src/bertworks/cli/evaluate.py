"""`bertworks evaluate`: a fine-tuned model and labelled files in, its scores out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bertworks.cli.options import Engine, Targets
from bertworks.cli.progress import show_progress
from bertworks.commands.evaluate import LabelledFile, evaluate_files, files_of_set
from bertworks.errors import SettingsError
from bertworks.inference.finetuned import load_predictor

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("evaluate")
def evaluate_verb(
    model: Annotated[str, typer.Argument(help="The fine-tuned model: a folder, or a name on the hub.")],
    files: Annotated[
        list[str], typer.Argument(help="Labelled files of the model's task; with --data a published set, as glue/MNLI.")
    ],
    data: Annotated[Path | None, typer.Option(help="The folder of a published set.")] = None,
    text: Annotated[str | None, typer.Option(help="The column of the text.")] = None,
    pair: Annotated[str | None, typer.Option(help="The column of the second text.")] = None,
    label: Annotated[str | None, typer.Option(help="The column of the label, or of the translation.")] = None,
    targets: Targets = None,
    engine: Engine = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object; of several files, one in it for each.")] = (
        False
    ),
) -> None:
    """Score MODEL on labelled FILES, side by side."""
    roles = (("text", text), ("pair", pair), ("label", label), ("targets", targets))
    columns = {role: column for role, column in roles if column}
    if data is None:
        wanted = [LabelledFile(file, Path(file), columns) for file in files]
    elif len(files) == 1:
        wanted = files_of_set(files[0], data)
    else:
        raise SettingsError(f"--data {data} is the folder of one published set; name that one only")
    predictor = load_predictor(model, engine=engine)
    with show_progress() as watch:
        found = list(evaluate_files(predictor, wanted, watch))
    scores = {one.name: dict(one.scores.metrics) for one in found}
    if as_json:
        print(json.dumps(scores if len(scores) > 1 else scores[found[0].name]))
        return
    for one in found:
        for what, count in one.counts.items():
            print(f"{count:,} {what}")
    if len(scores) > 1:
        Console(highlight=False).print(score_table(scores))
        return
    for name, value in found[0].scores.metrics.items():
        print(f"{name:<20} {value:.4f}")


def score_table(scores: Mapping[str, Mapping[str, float]]) -> Table:
    """Return a table with a column for each file or split and a line for each figure."""
    table = Table("", *scores, box=None)
    for name in dict.fromkeys(name for figures in scores.values() for name in figures):
        cells = (f"{figures[name]:.4f}" if name in figures else "–" for figures in scores.values())
        table.add_row(name, *cells)
    return table
