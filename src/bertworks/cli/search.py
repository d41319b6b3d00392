"""`bertworks search`: the texts of a file that are nearest to a query."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bertworks.cli.progress import show_progress
from bertworks.commands import search as searching

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def search(
    model: Annotated[str, typer.Argument(help="A model folder, or a name on the hub.")],
    file: Annotated[str, typer.Argument(help="Texts: one a line, or TSV, CSV or JSON Lines.")],
    query: Annotated[str, typer.Argument(help="What to look for.")],
    top: Annotated[int, typer.Option(help="How many texts.")] = 5,
    vectors: Annotated[
        Path | None, typer.Option(help="The .npy of FILE's vectors; made and kept there if it does not exist.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="The column of a table that holds the text.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON: query, hits.")] = False,
) -> None:
    """Print the texts of FILE that are nearest to QUERY in meaning, with the cosine of the angle between them."""
    with show_progress() as watch:
        hits = searching.search(searching.SearchRequest(model, file, query, top, vectors, text), watch)
    if as_json:
        print(json.dumps({"query": query, "hits": [asdict(hit) for hit in hits]}, ensure_ascii=False))
        return
    for hit in hits:
        print(f"{hit.cosine:7.4f}  {hit.number:>7}  {hit.text}")
