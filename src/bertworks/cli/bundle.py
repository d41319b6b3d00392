"""`bertworks bundle`: runs in, one folder for production out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bertworks.cli.progress import show_progress
from bertworks.progress import Progress
from bertworks.serving import bundle as bundling

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def bundle(
    runs: Annotated[list[str], typer.Argument(help="Finished runs or model folders: NAME=FOLDER, or FOLDER.")],
    output: Annotated[Path, typer.Option(help="The folder to make.")],
    base: Annotated[list[str] | None, typer.Option(help="The pretrained model they came from: NAME=FOLDER.")] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="The corpus folder; its text is taken along, to search it.")
    ] = None,
    manifest: Annotated[Path | None, typer.Option(help="The corpus folder; only its manifest is taken along.")] = None,
    index: Annotated[str, typer.Option(help="The model that embeds the text for search; none makes no index.")] = "",
) -> None:
    """Put models, the pretrained model they came from and the corpus into one folder for `bertworks serve`.

    What the runs recorded of the last two is taken along if it is still there; --base and --corpus name it otherwise.
    bundle.json has the hash of every file and of every step from the corpus to the fine-tuned model.
    """
    request = bundling.BundleRequest(tuple(runs), output, tuple(base or ()), corpus, manifest, index)
    with show_progress() as watch:
        made = bundling.bundle(request, lambda done, total: watch(Progress("embed", done, total, "passages")))
    print(f"{made.folder}: {', '.join(made.models)}; {made.num_files:,} files")
    for link in made.chain:
        if link.earlier is None:
            print(f"{link.later}: what it came from is not in the bundle; give it with --base or --corpus")
        else:
            how = "its folder records the hash" if link.is_recorded else "as given; its folder records no hash"
            print(f"{link.later} came from {link.earlier} ({how})")
    if made.index_model:
        print(f"search: the corpus, by {made.index_model}")
