"""`bertworks evaluate`: a fine-tuned model and a labelled file in, its scores out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from bertworks.runs.predict import evaluate

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("evaluate")
def evaluate_verb(
    model: Annotated[str, typer.Argument(help="The fine-tuned model: a folder, or a name on the hub.")],
    file: Annotated[Path, typer.Argument(help="A labelled file of the model's task.")],
    text: Annotated[str | None, typer.Option(help="The column of the text.")] = None,
    pair: Annotated[str | None, typer.Option(help="The column of the second text.")] = None,
    label: Annotated[str | None, typer.Option(help="The column of the label.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Score MODEL on a labelled FILE."""
    roles = (("text", text), ("pair", pair), ("label", label))
    scored, counts = evaluate(model, file, {role: column for role, column in roles if column})
    if as_json:
        print(json.dumps(dict(scored.figures)))
        return
    for what, count in counts.items():
        print(f"{count:,} {what}")
    for name, value in scored.figures.items():
        print(f"{name:<20} {value:.4f}")
