"""`bertworks next`: the words that are likely to stand behind a text, or before it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from bertworks.inference.model import load

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("next")
def next_verb(
    model: Annotated[str, typer.Argument(help="A model folder, or a name on the hub.")],
    text: Annotated[str, typer.Argument(help="The text.")],
    top: Annotated[int, typer.Option(help="How many words.")] = 5,
    backward: Annotated[
        bool, typer.Option("--backward", help="The word before the text; not by models that read to the left.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One line of JSON: word, pieces, probability of each.")
    ] = False,
) -> None:
    """Print the likeliest next words of TEXT, with probabilities."""
    found = load(model).next_words(text, top, backward)
    if as_json:
        print(json.dumps([asdict(one) for one in found], ensure_ascii=False))
        return
    for one in found:
        print(f"{one.probability:7.1%}  {one.word}")
