"""`bertworks package`: a pretrained model in, the source of an installable Python package out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bertworks.cli.command import Command, command_app
from bertworks.cli.console import say
from bertworks.cli.export import format_certificate
from bertworks.cli.progress import show_progress

app = command_app()


@app.command("package", cls=Command)
def package_command(
    model: Annotated[str, typer.Argument(help="A finished run or a model folder.")],
    name: Annotated[str, typer.Option(help="Name of the model, such as en-small.")],
    output: Annotated[Path, typer.Option(help="Folder to write, such as models/en-small.")],
    card: Annotated[
        Path | None,
        typer.Option(help="Markdown to insert into the model card: origins and licences of the data, scores, limits."),
    ] = None,
    run: Annotated[Path | None, typer.Option(help="Run folder of MODEL; by default the one it is in.")] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="Corpus folder of the run; by default the one that it recorded.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Texts to compare fp16 and fp32 on; by default held-out ones of the corpus.")
    ] = None,
    version: Annotated[str, typer.Option(help="Version of the package.")] = "1.0.0",
    license: Annotated[str, typer.Option(help="License of the model, an SPDX expression.")] = "Apache-2.0",  # noqa: A002
    tolerance: Annotated[float | None, typer.Option(min=0, help="Largest difference allowed in any output.")] = None,
    max_megabytes: Annotated[float, typer.Option(min=0, help="Largest size allowed of the weights in MB.")] = 30.0,
) -> None:
    """Write MODEL as a Python package with fp16 weights and a model card, to be installed with pip.

    Once installed, it is loaded by its name: `bertworks.load("en-small")`, `--model en-small`. The card is written from
    the records of the run and the manifest of the corpus; the sections of --card are added to those of the same title.
    A model that changes too much in fp16 is refused.
    """
    from bertworks.exporters.package import PackageRequest, package

    request = PackageRequest(
        model=model, name=name, output=output, notes=card, run=run, corpus=corpus, texts=data, version=version,
        license=license, difference=tolerance, max_megabytes=max_megabytes,
    )  # fmt: skip
    with show_progress() as on_progress:
        result = package(request, on_progress)
    path = output if output.is_absolute() else f"./{output}"  # pip takes a bare name for that of a package
    say(f"{output}: {result.num_bytes / 1e6:,.1f} MB; install it with: pip install {path}")
    for line in format_certificate(result.certificate):
        say(line)
    for text in result.absent:
        say(f"the model card has {text}")
