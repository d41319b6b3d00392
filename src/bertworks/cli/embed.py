"""`bertworks embed`: texts in, their vectors out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bertworks.cli.options import Engine
from bertworks.cli.progress import watching
from bertworks.commands import embed as embedding
from bertworks.embeddings.pooling import POOLINGS
from bertworks.embeddings.strategies import STRATEGIES
from bertworks.engines.batching import BUDGET
from bertworks.errors import SettingsError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def embed(
    model: Annotated[str, typer.Argument(help="A model folder, or a name on the hub.")],
    file: Annotated[str, typer.Argument(help="Texts: one a line, or TSV, CSV or JSON Lines; - for standard input.")],
    out: Annotated[Path, typer.Option(help="The file to write; with --pieces or --words a folder.")],
    text: Annotated[str | None, typer.Option(help="The column of a table that holds the text.")] = None,
    pooling: Annotated[str | None, typer.Option(help=f"How pieces become one vector: {', '.join(POOLINGS)}.")] = None,
    layers: Annotated[str, typer.Option(help=f"One of: {', '.join(STRATEGIES)}.")] = "last",
    pieces: Annotated[bool, typer.Option("--pieces", help="A vector a piece, with offsets.")] = False,
    words: Annotated[bool, typer.Option("--words", help="A vector a word, with offsets.")] = False,
    half: Annotated[bool, typer.Option("--half", help="Write half precision.")] = False,
    format: Annotated[str, typer.Option(help="npy, parquet or jsonl.")] = "npy",  # noqa: A002
    batch_pieces: Annotated[int, typer.Option(min=1, help="Pieces that are computed together.")] = BUDGET,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut long texts instead of reading all of them.")
    ] = False,
    engine: Engine = None,
) -> None:
    """Write a vector for each text of FILE: its pieces joined as the model's folder says, else their mean.

    Long texts are read in overlapping windows, and every piece counts once. Killed at any moment, the same command
    continues, and the result is the same to the byte.
    """
    if pieces and words:
        raise SettingsError("--pieces and --words exclude each other; leave one out")
    unit = "pieces" if pieces else "words" if words else "texts"
    request = embedding.EmbedRequest(
        model, file, out, text, unit, layers, pooling, half, format, batch_pieces, truncate, engine
    )
    with watching() as watch:
        done = embedding.embed(request, watch)
    if done.resumed:
        print(f"taken up after {done.resumed:,} texts that were done")
    rows = "" if unit == "texts" else f", {done.num_rows:,} {unit}"
    print(f"{done.out}: {done.num_texts:,} texts{rows}, vectors of {done.width} numbers")
    if unit != "pieces":
        print(f"pooling: {_told(done)}")
    for what, count in done.counts.items():
        print(f"{what}: {count:,}")


def _told(done: embedding.Embedded) -> str:
    told = " and ".join(done.pooling.kinds) + (", scaled to length 1" if done.pooling.normalise else "")
    return told if done.pooling.told else f"{told} (the model names none; choose with --pooling)"
