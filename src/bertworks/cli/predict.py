"""`bertworks predict`: a fine-tuned model and texts in, predictions as JSON Lines out."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from bertworks.cli.options import Engine
from bertworks.cli.progress import show_progress
from bertworks.commands.predict import BY, PredictRequest, predict
from bertworks.datasets.files import kind_of_name, read_records
from bertworks.progress import Progress, ProgressCallback
from bertworks.text.document import Counts

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("predict")
def predict_verb(
    model: Annotated[str, typer.Argument(help="The fine-tuned model: a folder, or a name on the hub.")],
    file: Annotated[str, typer.Argument(help="Texts, one a line; TSV, CSV or JSON Lines; - for standard input.")] = "-",
    by: Annotated[str, typer.Option(help=f"What is predicted: a whole {' or each '.join(BY)}.")] = "text",
    kind: Annotated[str | None, typer.Option(help="text, tsv, csv or jsonl, where the name does not tell.")] = None,
    text: Annotated[str | None, typer.Option(help="The column of the text.")] = None,
    pair: Annotated[str | None, typer.Option(help="The column of the second text.")] = None,
    engine: Engine = None,
) -> None:
    """Predict with MODEL, one JSON object a line, in the order of the texts and as they come."""
    columns = {role: column for role, column in (("text", text), ("pair", pair)) if column}
    if file == "-":
        request = PredictRequest(model, sys.stdin.buffer, kind or "text", by, columns, engine)
    else:
        usual = None if ".json" in Path(file).suffixes else "text"  # whose first line tells, if its name does not
        request = PredictRequest(model, Path(file), kind or kind_of_name(file) or usual, by, columns, engine)
    out, total, counts = sys.stdout, _count_predictions(request), Counts()
    with _show_progress() as watch:
        for number, one in enumerate(predict(request, counts), 1):
            print(json.dumps(one, ensure_ascii=False), file=out, flush=True)
            watch(Progress("predict", number, total, f"{by}s"))
    for what, count in counts.items():
        print(f"{count:,} {what}", file=sys.stderr)


def _count_predictions(request: PredictRequest) -> int | None:
    """Return how many predictions there will be, where that can be known before: reading a file twice costs little."""
    if not isinstance(request.source, Path) or not request.source.is_file() or request.by != "text":
        return None
    if request.kind is None:  # perhaps one object with all of SQuAD in it
        return None
    columns = ("text",) if request.kind == "text" else None
    return sum(1 for _ in read_records(request.source, columns, kind=request.kind))


@contextlib.contextmanager
def _show_progress() -> Iterator[ProgressCallback]:
    """Yield what shows progress; nothing where the predictions themselves run over the screen."""
    if sys.stdout.isatty():
        yield lambda progress: None
        return
    with show_progress() as watch:
        yield watch
