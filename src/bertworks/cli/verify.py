"""`bertworks verify`: a model or corpus folder in, whether its files are as they were written out."""

from __future__ import annotations

from typing import Annotated

import typer

from bertworks.cli.command import Command, command_app
from bertworks.cli.console import say
from bertworks.cli.progress import show_progress

app = command_app()

_MAX_NAMES = 20


@app.command("verify", cls=Command)
def verify_command(
    folder: Annotated[str, typer.Argument(help="A model, a finished run or a corpus.")],
    accept: Annotated[
        bool, typer.Option("--accept", help="Record the text files of the model as they are now: you changed them.")
    ] = False,
) -> None:
    """Hash every file of FOLDER and compare it with the hash that was recorded when it was written.

    Loading a model compares its files, too, but files that have not changed since are remembered and not read again.
    README.md and LICENSE may change. A model without hashes gets them with --accept.
    """
    from bertworks.commands.verify import verify

    with show_progress() as on_progress:
        result = verify(folder, accept, on_progress)
    for name in result.accepted:
        say(f"accepted: {name}")
    if result.unused_tensors:
        names, num_more = ", ".join(result.unused_tensors[:_MAX_NAMES]), len(result.unused_tensors) - _MAX_NAMES
        say(f"tensors that the model does not use: {names}" + (f" and {num_more} more" if num_more > 0 else ""))
    for note in result.notes:
        say(note)
    if result.num_files:
        say(f"{result.folder}: {result.num_files} files, all hashes match")
    else:
        say(f"{result.folder}: no hashes are recorded; `bertworks verify --accept {result.folder}` records them")
