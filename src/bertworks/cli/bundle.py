"""`bertworks bundle`: runs in, one folder for production out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bertworks.cli.command import Command, command_app
from bertworks.cli.console import say
from bertworks.cli.printers import print_warnings
from bertworks.cli.progress import show_progress
from bertworks.messages import fill

app = command_app()


@app.command("bundle", cls=Command)
def bundle_command(
    runs: Annotated[
        list[str], typer.Argument(help="Finished runs or model folders: NAME=FOLDER, or FOLDER.", metavar="RUN…")
    ],
    output: Annotated[Path, typer.Option(help="Folder to create.")],
    base: Annotated[
        list[str] | None, typer.Option(help="The pretrained model they come from: NAME=FOLDER; may be repeated.")
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="A corpus folder, of any text; it is included, so that it can be searched.")
    ] = None,
    manifest: Annotated[
        Path | None, typer.Option(help="The corpus folder a model was trained on; only its manifest is included.")
    ] = None,
    index: Annotated[
        str, typer.Option(help="Name of the model that embeds the text for search; none: no index.", metavar="NAME")
    ] = "",
) -> None:
    """Put models, the pretrained model they come from and the corpus into one folder for `bertworks serve`.

    Base model and corpus are taken from what the runs recorded if they still exist; --base and --corpus name them
    otherwise. The text of --corpus may be any: it is embedded by a model of the bundle. bundle.json has the hash of
    every file and of every step from the corpus to the fine-tuned model.
    """
    from bertworks.serving.bundle import BundleRequest, bundle

    request = BundleRequest(
        runs=tuple(runs), output=output, bases=tuple(base or ()), corpus=corpus, manifest=manifest, index=index
    )  # fmt: skip
    with show_progress() as on_progress:
        result = bundle(request, on_progress)
    print(fill("{}: {}; {} files", result.folder, ", ".join(result.models), f"{result.num_files:,}"))
    print_warnings(result.warnings)
    for link in result.chain:
        if link.earlier is None and corpus is not None:
            say(f"{link.later}: the model or corpus it was trained from is not in the bundle")
        elif link.earlier is None:
            say(f"{link.later}: its origin is not in the bundle; give it with --base or --corpus")
        else:
            how = "its folder records the hash" if link.is_recorded else "as given; its folder records no hash"
            say(f"{link.later} comes from {link.earlier} ({how})")
    if result.index_model:
        say(f"search: the corpus, embedded by {result.index_model}")
