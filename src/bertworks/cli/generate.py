"""`bertworks generate`: go on with a text."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from bertworks.inference.generate import make_generation_config
from bertworks.inference.model import load

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def generate(
    model: Annotated[str, typer.Argument(help="A left-to-right model: a folder, or a name on the hub.")],
    text: Annotated[str, typer.Argument(help="How the text begins; may be empty.")],
    max_new_tokens: Annotated[int, typer.Option(help="How many pieces to add at most.")] = 40,
    top_k: Annotated[
        int | None,
        typer.Option(help="Draw among so many likeliest pieces (1 if nothing else is asked: greedy; 0: all)."),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Draw among the fewest pieces that have this probability together, such as 0.9."),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Below 1 the likely gets likelier, above 1 less so.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed, another text.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="One line of JSON: text, added, pieces, probabilities, ended.")
    ] = False,
) -> None:
    """Print TEXT and what MODEL adds to it. Without options the likeliest piece is taken each time."""
    found = load(model).generate(text, make_generation_config(max_new_tokens, top_k, top_p, temperature, seed))
    print(json.dumps(asdict(found), ensure_ascii=False) if as_json else found.text)
