"""`bertworks embed`: texts in, their embeddings on disk out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertworks.choices import FEATURE_STRATEGIES, POOLING_ALIASES, POOLINGS
from bertworks.cli.command import Command, choice, command_app
from bertworks.cli.console import say
from bertworks.cli.options import Engine, ModelArgument, Precision, TextColumn
from bertworks.cli.printers import print_warnings
from bertworks.cli.progress import show_progress

if TYPE_CHECKING:
    from bertworks.commands.embed import EmbedResult

app = command_app()


@app.command("embed", cls=Command)
def embed_command(
    model: ModelArgument,
    file: Annotated[str, typer.Argument(help="Texts: one per line, or TSV, CSV or JSON Lines; - for standard input.")],
    output: Annotated[Path, typer.Option(help="File to write; a folder with --level words or tokens.")],
    text: TextColumn = None,
    level: Annotated[
        str, choice("level", ("texts", "words", "tokens"), "One vector per text, word or token, with offsets.")
    ] = "texts",
    pooling: Annotated[
        str | None,
        choice("pooling", POOLINGS, "How token vectors become one; of words: mean, first or max.", POOLING_ALIASES),
    ] = None,
    layers: Annotated[str, choice("layer strategy", FEATURE_STRATEGIES, "Which hidden states to use.")] = "last",
    half: Annotated[bool, typer.Option("--half", help="Write fp16 instead of fp32.")] = False,
    format: Annotated[str, choice("format", ("npy", "parquet", "jsonl"), "Output format.")] = "npy",  # noqa: A002
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Maximum tokens per batch.")] = None,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Truncate long texts instead of splitting them into windows.")
    ] = False,
    prompt_name: Annotated[
        str | None,
        typer.Option(help="Prompt of a sentence-transformers model to put before every text; by default its default."),
    ] = None,
    engine: Engine = None,
    precision: Precision = None,
) -> None:
    """Write an embedding for each text of FILE, pooled as the model folder says, else the mean of its tokens.

    Long texts are split into overlapping windows in which every token counts once. Killed at any moment, the same
    command continues, and the result is byte-identical.
    """
    from bertworks.commands.embed import EmbedRequest, embed
    from bertworks.engines.batching import TOKEN_BUDGET

    request = EmbedRequest(
        model=model, file=file, output=output, column=text, unit=level, layers=layers, pooling=pooling, half=half,
        format=format, budget=batch_tokens or TOKEN_BUDGET, truncate=truncate,
        prompt_name=prompt_name, engine=engine, precision=precision,
    )  # fmt: skip
    with show_progress() as on_progress:
        result = embed(request, on_progress)
    print_warnings(result.warnings)
    if result.num_resumed:
        say(f"continued after {result.num_resumed:,} texts")
    rows = "" if level == "texts" else f", {result.num_rows:,} {level}"
    say(f"{result.output}: {result.num_texts:,} texts{rows}, vectors of size {result.vector_size}")
    if level != "tokens":
        say(f"pooling: {_describe_pooling(result)}")
    for name, count in result.counts.items():
        say(f"{name}: {count:,}")


def _describe_pooling(result: EmbedResult) -> str:
    text = " and ".join(result.pooling.kinds) + (", L2-normalized" if result.pooling.normalize else "")
    return text if result.pooling.is_explicit else f"{text} (not set by the model; choose with --pooling)"
