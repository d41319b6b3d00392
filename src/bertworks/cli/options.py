"""Options that several verbs about text have: one name, one meaning, one help text each."""

from __future__ import annotations

from typing import Annotated

import typer

_SOURCES = typer.Argument(help="Files, folders, globs, '-' for standard input, or 'python-docs'.", metavar="SOURCE…")

Sources = Annotated[list[str], _SOURCES]
OptionalSources = Annotated[list[str] | None, _SOURCES]
Format = Annotated[str, typer.Option(help="Of the sources: auto, or one by name.")]
Field = Annotated[str, typer.Option(help="The field or column of JSON Lines, CSV, TSV and Parquet.")]
Lines = Annotated[str, typer.Option(help="What a line is: auto, sentences, paragraphs or wrapped.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes; all cores by default.")]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Work on a Ray cluster: auto, HOST:PORT, ray://HOST:PORT; or local, which starts one here.",
    ),
]
RayCpus = Annotated[int, typer.Option(min=1, help="With --ray: CPUs of each run.")]
Engine = Annotated[
    str | None,
    typer.Option(help="What computes: torch, onnx or openvino; by default what a folder was exported for, else torch."),
]
Targets = Annotated[
    str | None,
    typer.Option(help="The ending of files with translations, line by line: zh for train.zh beside train.lzh."),
]
Vocabulary = Annotated[str | None, typer.Option(help="Which vocabulary of the corpus: its path, or its hash.")]
