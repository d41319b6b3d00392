"""`bertworks search`: a file of texts and a query in, the nearest texts out."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bertworks.cli.command import Command, command_app
from bertworks.cli.options import AsJson, ModelArgument, TextColumn, TopK
from bertworks.cli.progress import show_progress

app = command_app()


@app.command("search", cls=Command)
def search_command(
    model: ModelArgument,
    file: Annotated[str, typer.Argument(help="Texts: one per line, or TSV, CSV or JSON Lines.")],
    query: Annotated[str, typer.Argument(help="The query text.")],
    top_k: TopK = 5,
    vectors: Annotated[
        Path | None, typer.Option(help="The .npy file with FILE's embeddings; written there if it does not exist.")
    ] = None,
    text: TextColumn = None,
    as_json: AsJson = False,
) -> None:
    """Print the texts of FILE with the highest cosine similarity to QUERY."""
    from bertworks.commands.search import SearchRequest, search

    request = SearchRequest(
        model=model, file=file, query=query, top_k=top_k, vectors=vectors, column=text
    )  # fmt: skip
    with show_progress() as on_progress:
        hits = search(request, on_progress)
    if as_json:
        print(json.dumps({"query": query, "hits": [asdict(hit) for hit in hits]}, ensure_ascii=False))
        return
    for hit in hits:
        print(f"{hit.cosine:7.4f}  {hit.number:>7}  {hit.text}")
