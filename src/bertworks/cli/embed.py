"""`bertworks embed`: texts in, their vectors out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bertworks.cli.options import Engine
from bertworks.cli.progress import show_progress
from bertworks.commands import embed as embedding
from bertworks.embeddings.pooling import POOLINGS
from bertworks.embeddings.strategies import STRATEGIES
from bertworks.engines.batching import TOKEN_BUDGET
from bertworks.errors import SettingsError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def embed(
    model: Annotated[str, typer.Argument(help="A model folder, or a name on the hub.")],
    file: Annotated[str, typer.Argument(help="Texts: one a line, or TSV, CSV or JSON Lines; - for standard input.")],
    output: Annotated[Path, typer.Option(help="The file to write; with --pieces or --words a folder.")],
    text: Annotated[str | None, typer.Option(help="The column of a table that holds the text.")] = None,
    pooling: Annotated[str | None, typer.Option(help=f"How pieces become one vector: {', '.join(POOLINGS)}.")] = None,
    layers: Annotated[str, typer.Option(help=f"One of: {', '.join(STRATEGIES)}.")] = "last",
    tokens: Annotated[bool, typer.Option("--pieces", help="A vector a piece, with offsets.")] = False,
    words: Annotated[bool, typer.Option("--words", help="A vector a word, with offsets.")] = False,
    half: Annotated[bool, typer.Option("--half", help="Write half precision.")] = False,
    format: Annotated[str, typer.Option(help="npy, parquet or jsonl.")] = "npy",  # noqa: A002
    batch_tokens: Annotated[int, typer.Option(min=1, help="Pieces that are computed together.")] = TOKEN_BUDGET,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut long texts instead of reading all of them.")
    ] = False,
    engine: Engine = None,
) -> None:
    """Write a vector for each text of FILE: its pieces joined as the model's folder says, else their mean.

    Long texts are read in overlapping windows, and every piece counts once. Killed at any moment, the same command
    continues, and the result is the same to the byte.
    """
    if tokens and words:
        raise SettingsError("--pieces and --words exclude each other; leave one out")
    unit = "pieces" if tokens else "words" if words else "texts"
    request = embedding.EmbedRequest(
        model, file, output, text, unit, layers, pooling, half, format, batch_tokens, truncate, engine
    )
    with show_progress() as watch:
        done = embedding.embed(request, watch)
    if done.num_resumed:
        print(f"taken up after {done.num_resumed:,} texts that were done")
    rows = "" if unit == "texts" else f", {done.num_rows:,} {unit}"
    print(f"{done.output}: {done.num_texts:,} texts{rows}, vectors of {done.vector_size} numbers")
    if unit != "pieces":
        print(f"pooling: {_describe_pooling(done)}")
    for what, count in done.counts.items():
        print(f"{what}: {count:,}")


def _describe_pooling(result: embedding.EmbedResult) -> str:
    told = " and ".join(result.pooling.kinds) + (", scaled to length 1" if result.pooling.normalize else "")
    return told if result.pooling.is_explicit else f"{told} (the model names none; choose with --pooling)"
