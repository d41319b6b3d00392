"""`bertworks tokenize`: show how a text looks to BERT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bertworks.vocabulary.tokenizer import Tokenizer

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def tokenize(
    text: Annotated[str, typer.Argument(help="The text, or the first of a pair.")],
    vocab: Annotated[Path, typer.Option(help="A vocab.txt, a tokenizer.json, or a folder that holds one.")],
    pair: Annotated[str | None, typer.Option(help="The second text of a pair.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One line of JSON: pieces, ids, positions, segments.")
    ] = False,
) -> None:
    """Print the pieces of TEXT with their ids, positions and segments, and the characters each stands for."""
    encoding = Tokenizer.load(vocab).encode(text, pair)
    if as_json:
        names = ("pieces", "ids", "positions", "segments")
        print(json.dumps({name: getattr(encoding, name) for name in names}, ensure_ascii=False))
        return
    table = Table("position", "piece", "id", "segment", "text", box=None, header_style="bold")
    for position, (piece, number) in enumerate(zip(encoding.tokens, encoding.input_ids, strict=True)):
        segment, place = encoding.token_type_ids[position], encoding.offsets[position]
        source = (pair or "") if segment and pair is not None else text
        covered = source[slice(*place)] if place else ""
        table.add_row(str(position), Text(piece), str(number), str(segment), Text(covered))
    Console().print(table)
    if encoding.num_replaced:
        print(f"{encoding.num_replaced} lone surrogates were read as U+FFFD")
