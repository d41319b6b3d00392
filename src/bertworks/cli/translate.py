"""`bertworks translate`: lines of text in, their translations out, line by line."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Annotated, Any

import typer

from bertworks.cli.progress import show_progress
from bertworks.datasets.texts import STANDARD_INPUT, texts_in
from bertworks.inference.model import load
from bertworks.inference.translator import translate_texts
from bertworks.progress import Progress
from bertworks.tasks.translate import Translate
from bertworks.text.document import Counts

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("translate")
def translate_verb(
    model: Annotated[str, typer.Argument(help="A model that translates: a folder, or a name on the hub.")],
    file: Annotated[str, typer.Argument(help="Texts, one a line; TSV, CSV or JSON Lines; - for standard input.")] = "-",
    text: Annotated[str | None, typer.Option(help="The column of the text.")] = None,
    num_beams: Annotated[
        int | None, typer.Option(help="How many beginnings are followed; 1: always the likeliest piece.")
    ] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Above 0 longer translations are favoured.")] = None,
    max_extra_tokens: Annotated[
        int | None, typer.Option(help="How many pieces longer than its source one may be.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON Lines: with the log probability.")] = False,
) -> None:
    """Translate with MODEL: as many lines come out as go in, in their order and as they are ready."""
    loaded = load(model)
    task = loaded.translator().module.task
    assert isinstance(task, Translate)
    told: dict[str, Any] = {"beams": num_beams, "length_penalty": length_penalty, "max_more": max_extra_tokens}
    searching = replace(task.search_settings, **{name: value for name, value in told.items() if value is not None})
    counts = Counts()
    with show_progress() as watch:
        found = translate_texts(loaded.translator(searching), texts_in(file, text), counts)
        for number, one in enumerate(found, 1):
            print(json.dumps(one.to_dict(), ensure_ascii=False) if as_json else one.text, flush=True)
            if file != STANDARD_INPUT and not sys.stdout.isatty():
                watch(Progress("translate", number, None, "texts"))
    for what, count in counts.items():
        print(f"{count:,} {what}", file=sys.stderr)
