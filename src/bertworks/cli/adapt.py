"""`bertworks adapt`: a model and the corpus of a domain in, a run folder with the adapted model out."""

from __future__ import annotations

from typing import Annotated

import typer

from bertworks.cli.command import Command, command_app
from bertworks.cli.completion import complete_model, complete_recipe
from bertworks.cli.options import (
    BatchSize,
    Budget,
    CorpusFolder,
    Device,
    LearningRate,
    Overrides,
    Precision,
    RunFolder,
    Seed,
    Shard,
    Track,
    Vocabulary,
)
from bertworks.cli.pretrain import run
from bertworks.settings import recipe_path

app = command_app()


@app.command("adapt", cls=Command)
def adapt_command(
    model: Annotated[
        str,
        typer.Argument(
            help="The model to start from: a folder, en-small or zh-small, or a name on the hub.",
            autocompletion=complete_model,
        ),
    ],
    data: CorpusFolder,
    output: RunFolder,
    recipe: Annotated[
        str,
        typer.Option(help="A recipe: a .toml file or a name. Its [model] is not used.", autocompletion=complete_recipe),
    ] = "adapt",
    budget: Budget = "",
    learning_rate: LearningRate = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    precision: Precision = None,
    device: Device = "auto",
    vocab: Vocabulary = None,
    shard: Shard = False,
    track: Track = None,
    overrides: Overrides = None,
) -> None:
    """Continue pretraining MODEL on a corpus of its own or of an extended vocabulary.

    Extend a vocabulary with `bertworks vocab extend MODEL …`: the embedding of each new token is initialized with the
    mean of the tokens it replaces. Ctrl-C saves a checkpoint and exits with 130; the same command continues, and the
    result is bit-identical.
    """
    path = recipe_path(recipe)
    from bertworks.commands.pretrain.recipe import read_pretrain_recipe
    from bertworks.commands.pretrain.request import PretrainRequest

    options = {
        "budget": budget or None, "learning_rate": learning_rate, "batch_size": batch_size, "seed": seed,
        "precision": precision,
    }  # fmt: skip
    run(
        PretrainRequest(
            recipe=read_pretrain_recipe(path, options, overrides or []), corpus=data, output=output, vocabulary=vocab,
            init_model=model, device=device, shard=shard,
        ),
        track or [],
    )  # fmt: skip
