"""`bertworks predict`: a fine-tuned model and texts in, predictions as JSON Lines out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from bertworks.runs.predict import BY, PredictRequest, predict

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("predict")
def predict_verb(
    model: Annotated[str, typer.Argument(help="The fine-tuned model: a folder, or a name on the hub.")],
    file: Annotated[str, typer.Argument(help="Texts, one a line; TSV, CSV or JSON Lines; - for standard input.")] = "-",
    by: Annotated[str, typer.Option(help=f"What is predicted: a whole {' or each '.join(BY)}.")] = "text",
    kind: Annotated[str | None, typer.Option(help="text, tsv, csv or jsonl, where the name does not tell.")] = None,
    text: Annotated[str | None, typer.Option(help="The column of the text.")] = None,
    pair: Annotated[str | None, typer.Option(help="The column of the second text.")] = None,
) -> None:
    """Predict with MODEL, one JSON object a line, in the order of the texts and as they come."""
    columns = {role: column for role, column in (("text", text), ("pair", pair)) if column}
    if file == "-":
        request = PredictRequest(model, sys.stdin.buffer, kind or "text", by, columns)
    else:
        usual = None if Path(file).suffixes[:1] in ([".tsv"], [".csv"], [".jsonl"], [".json"]) else "text"
        request = PredictRequest(model, Path(file), kind or usual, by, columns)
    for one in predict(request):
        print(json.dumps(one, ensure_ascii=False), flush=True)
