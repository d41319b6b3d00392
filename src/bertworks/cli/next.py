"""`bertworks next`: a text in, the most probable next or previous words out."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from bertworks.cli.command import Command, command_app
from bertworks.cli.options import AsJson, ModelArgument, TopK

app = command_app()


@app.command("next", cls=Command)
def next_command(
    model: ModelArgument,
    text: Annotated[str, typer.Argument(help="The text.")],
    top_k: TopK = 5,
    backward: Annotated[
        bool, typer.Option("--backward", help="Predict the word before the text; not for causal models.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the most probable next words of TEXT with their probabilities."""
    from bertworks.inference.model import load

    words = load(model).next_words(text, top_k, backward)
    if as_json:
        print(json.dumps([asdict(word) for word in words], ensure_ascii=False))
        return
    for word in words:
        print(f"{word.probability:7.1%}  {word.word}")
