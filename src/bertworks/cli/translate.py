"""`bertworks translate`: lines of text in, their translations out, line by line."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Annotated, Any

import typer

from bertworks.cli.command import Command, command_app
from bertworks.cli.console import warn
from bertworks.cli.options import TextColumn
from bertworks.cli.progress import show_progress
from bertworks.progress import Progress

app = command_app()


@app.command("translate", cls=Command)
def translate_command(
    model: Annotated[str, typer.Argument(help="A translation model: a folder, or a name on the hub.")],
    file: Annotated[
        str, typer.Argument(help="Texts, one per line; TSV, CSV or JSON Lines; - for standard input.")
    ] = "-",
    text: TextColumn = None,
    num_beams: Annotated[int | None, typer.Option(help="Beams of the search; 1: greedy.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Above 0 longer translations are favoured.")] = None,
    max_extra_tokens: Annotated[
        int | None, typer.Option(help="How many tokens a translation may be longer than its source.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON Lines with log probabilities.")] = False,
) -> None:
    """Translate FILE with MODEL: one line out per line in, in order, as soon as it is ready."""
    from bertworks.datasets.texts import STANDARD_INPUT, texts_in
    from bertworks.inference.model import load
    from bertworks.inference.translator import translate_texts
    from bertworks.tasks.contract import GenerativeTask
    from bertworks.text.document import Counts

    loaded = load(model)
    task = loaded.translator().module.task
    assert isinstance(task, GenerativeTask)
    options: dict[str, Any] = {
        "num_beams": num_beams, "length_penalty": length_penalty, "max_extra_tokens": max_extra_tokens,
    }  # fmt: skip
    settings = replace(task.search_settings, **{name: value for name, value in options.items() if value is not None})
    counts = Counts()
    with show_progress() as on_progress:
        translations = translate_texts(loaded.translator(settings), texts_in(file, text), counts)
        for number, translation in enumerate(translations, 1):
            line = json.dumps(translation.to_dict(), ensure_ascii=False) if as_json else translation.text
            print(line, flush=True)
            if file != STANDARD_INPUT and not sys.stdout.isatty():
                on_progress(Progress("translate", number, None, "texts"))
    for name, count in counts.items():
        warn(f"{count:,} {name}")
