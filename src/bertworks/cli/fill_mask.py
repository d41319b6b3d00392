"""`bertworks fill`: fill the blanks of a text."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from bertworks.cli.options import Engine
from bertworks.inference.model import load

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def fill_mask(
    model: Annotated[str, typer.Argument(help="A model folder, or a name on the hub.")],
    text: Annotated[str, typer.Argument(help="The text, with [MASK] where a piece is missing.")],
    top: Annotated[int, typer.Option(help="How many candidates.")] = 5,
    engine: Engine = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON: text, blanks, fillings.")] = False,
) -> None:
    """Print the likeliest pieces for each [MASK] of TEXT, and the best ways to fill all of them together."""
    found = load(model, engine=engine).fill_mask(text, top)
    if as_json:
        print(json.dumps(asdict(found), ensure_ascii=False))
        return
    for number, candidates in enumerate(found.mask_candidates, 1):
        print(f"blank {number}")
        for one in candidates:
            print(f"{one.probability:7.1%}  {one.token}")
    print("together" if len(found.mask_candidates) > 1 else "written out")
    for filling in found.sequences:
        print(f"{filling.probability:7.1%}  {filling.text}")
