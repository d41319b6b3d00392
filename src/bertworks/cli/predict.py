"""`bertworks predict`: a fine-tuned model and texts in, predictions as JSON Lines out."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertworks.cli.command import Command, choice, command_app
from bertworks.cli.console import warn
from bertworks.cli.options import Engine, FinetunedModel, PairColumn, Precision, TextColumn, columns_of
from bertworks.cli.printers import print_warnings
from bertworks.cli.progress import show_progress
from bertworks.progress import Progress, ProgressCallback

if TYPE_CHECKING:
    from bertworks.commands.predict import PredictRequest
    from bertworks.vocabulary.text_coverage import CoverageWarning

app = command_app()


@app.command("predict", cls=Command)
def predict_command(
    model: FinetunedModel,
    file: Annotated[
        str, typer.Argument(help="Texts, one per line; TSV, CSV or JSON Lines; - for standard input.")
    ] = "-",
    by: Annotated[str, choice("unit", ("text", "sentence"), "Predict for whole texts or for each sentence.")] = "text",
    kind: Annotated[
        str | None, choice("kind", ("text", "tsv", "csv", "jsonl"), "Format of the input, if its name does not tell.")
    ] = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    engine: Engine = None,
    precision: Precision = None,
) -> None:
    """Predict with MODEL and print one JSON object per line, in the order of the texts and as soon as it is ready."""
    from bertworks.commands.predict import PredictRequest, predict
    from bertworks.datasets.files import kind_of_name
    from bertworks.text.document import Counts

    columns = columns_of(text=text, pair=pair)
    if file == "-":
        request = PredictRequest(
            model=model,
            source=sys.stdin.buffer,
            kind=kind or "text",
            by=by,
            columns=columns,
            engine=engine,
            precision=precision,
        )
    else:
        default = None if ".json" in Path(file).suffixes else "text"  # a .json file is recognized by its first line
        request = PredictRequest(
            model=model,
            source=Path(file),
            kind=kind or kind_of_name(file) or default,
            by=by,
            columns=columns,
            engine=engine,
            precision=precision,
        )
    total, counts = _count_predictions(request), Counts()
    warnings: list[CoverageWarning] = []
    with _show_progress() as on_progress:
        for number, prediction in enumerate(predict(request, counts, warnings.append), 1):
            print(json.dumps(prediction, ensure_ascii=False), flush=True)
            on_progress(Progress("predict", number, total, f"{by}s"))
    print_warnings(warnings)
    for name, count in counts.items():
        warn(f"{count:,} {name}")


def _count_predictions(request: PredictRequest) -> int | None:
    """Return the number of predictions if it can be known before: reading a file twice costs little."""
    from bertworks.datasets.files import read_records

    if not isinstance(request.source, Path) or not request.source.is_file() or request.by != "text":
        return None
    if request.kind is None:  # perhaps one object with all of SQuAD in it
        return None
    columns = ("text",) if request.kind == "text" else None
    return sum(1 for _ in read_records(request.source, columns, kind=request.kind))


@contextlib.contextmanager
def _show_progress() -> Iterator[ProgressCallback]:
    """Yield a progress callback; it does nothing if the predictions themselves go to the terminal."""
    if sys.stdout.isatty():
        yield lambda progress: None
        return
    with show_progress() as on_progress:
        yield on_progress
