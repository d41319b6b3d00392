"""`bertworks info`: a folder in, what it is, its content and state, and the next command out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertworks.cli.command import Command, command_app
from bertworks.cli.completion import complete_model
from bertworks.cli.options import AsJson
from bertworks.messages import localize

if TYPE_CHECKING:
    from bertworks.folder_info.kind import FolderInfo

app = command_app()


@app.command("info", cls=Command)
def info_command(
    folder: Annotated[
        str,
        typer.Argument(
            help="Any folder that bertworks writes or reads, or a model such as en-small.",
            autocompletion=complete_model,
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Tell what FOLDER is, which command and version wrote it, what is in it, its state, and the next command.

    Knows vocabularies, corpora, runs, checkpoints, models of every family and format, sweeps, comparisons, exports,
    bundles, embeddings, word vectors and packages, and models of transformers, sentence-transformers and TensorFlow 1.
    Exits with 1 if the folder is damaged.
    """
    from bertworks.folder_info.kind import DAMAGED
    from bertworks.folder_info.registry import describe_folder

    info = describe_folder(folder)
    if as_json:
        print(json.dumps(info.to_dict(), ensure_ascii=False))
    else:
        _show(info)
    if info.state == DAMAGED:
        raise typer.Exit(1)


def _show(info: FolderInfo) -> None:
    """Print a line per fact; lines are not wrapped, so that the next command can be copied."""
    from rich.cells import cell_len

    rows = {"kind": localize(info.kind)}
    if info.command or info.version:
        rows["written by"] = " ".join(filter(None, (info.command, info.version)))
    rows["state"] = _format_state(info)
    rows |= {name: format_fact(name, value) for name, value in info.facts.items()}
    if info.next_command:
        rows["next"] = info.next_command
    labels = {name: localize(name) for name in rows}
    width = max(map(cell_len, labels.values()))
    print(info.folder)
    for name, value in rows.items():
        print(f"  {labels[name]}{' ' * (width - cell_len(labels[name]))}  {value}")


def _format_state(info: FolderInfo) -> str:
    holder = info.holder
    lock = (
        "" if holder is None else localize(f"; locked by process {holder.pid} on {holder.host} since {holder.started}")
    )
    problem = f": {localize(info.problem)}" if info.problem else ""
    return f"{localize(info.state)}{problem}{lock}"


def format_fact(name: str, value: Any) -> str:
    """Return a fact as people read it: 12,345; 4.8 MB; en, zh; dev: accuracy 0.8326."""
    if name == "disk space":
        return f"{value / 1e6:,.1f} MB"
    if isinstance(value, bool):
        return localize("yes" if value else "no")
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        separator = "; " if any(isinstance(item, Mapping) for item in value.values()) else ", "
        return separator.join(f"{key}{_colon(item)} {format_fact(name, item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(format_fact("", item) for item in value)
    return localize(value) if name == "vocabularies" else str(value)


def _colon(value: Any) -> str:
    return ":" if isinstance(value, Mapping | str) else ""
