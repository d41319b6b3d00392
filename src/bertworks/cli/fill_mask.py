"""`bertworks fill-mask`: a text with [MASK] in, candidates for each mask and the best joint fillings out."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from bertworks.cli.command import Command, command_app
from bertworks.cli.console import say
from bertworks.cli.options import AsJson, Engine, ModelArgument, Precision, TopK
from bertworks.cli.printers import print_warnings
from bertworks.messages import fill

app = command_app()


@app.command("fill-mask", cls=Command)
def fill_mask_command(
    model: ModelArgument,
    text: Annotated[str, typer.Argument(help="The text, with [MASK] for each masked token.")],
    top_k: TopK = 5,
    engine: Engine = None,
    precision: Precision = None,
    as_json: AsJson = False,
) -> None:
    """Print the most probable tokens for each [MASK] of TEXT, and the most probable joint fillings."""
    from bertworks.inference.model import load

    loaded = load(model, engine=engine, precision=precision)
    result = loaded.fill_mask(text, top_k)
    print_warnings(loaded.coverage_warnings(text))
    if as_json:
        print(json.dumps(asdict(result), ensure_ascii=False))
        return
    for number, candidates in enumerate(result.mask_candidates, 1):
        print(fill("mask {}", number))
        for candidate in candidates:
            print(f"{candidate.probability:7.1%}  {candidate.token}")
    say("joint fillings" if len(result.mask_candidates) > 1 else "filled")
    for sequence in result.sequences:
        print(f"{sequence.probability:7.1%}  {sequence.text}")
