"""`bertworks adapt`: a model and a corpus of a domain in, a run folder with the adapted model out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bertworks.cli.options import Vocabulary
from bertworks.cli.pretrain import follow, override_recipe
from bertworks.cli.training_options import BatchSize, Budget, Device, LearningRate, Precision, RunFolder, Seed, Shard
from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.commands.pretrain.run import PretrainRequest
from bertworks.settings import read_recipe, recipe_path

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("adapt")
def adapt_verb(
    model: Annotated[str, typer.Argument(help="The model to go on from: its folder, or a name on the hub.")],
    data: Annotated[Path, typer.Option(help="The corpus folder that `bertworks prepare` made of the domain's text.")],
    output: RunFolder,
    recipe: Annotated[str, typer.Option(help="A recipe: a .toml file or a name. Its [model] is not used.")] = "adapt",
    budget: Budget = "",
    batch_size: BatchSize = None,
    learning_rate: LearningRate = None,
    seed: Seed = None,
    vocab: Vocabulary = None,
    device: Device = "auto",
    precision: Precision = None,
    shard: Shard = False,
) -> None:
    """Continue the pretraining of MODEL on a corpus of its own or of an extended vocabulary.

    Extend one with `bertworks vocab extend MODEL …`: each new piece begins as the mean of the pieces it replaces.
    Ctrl-C saves and leaves; the same command continues, and the result is the same to the bit.
    """
    told = {"budget": budget or None, "batch": batch_size, "rate": learning_rate, "seed": seed, "precision": precision}
    chosen = override_recipe(read_recipe(recipe_path(recipe), PretrainRecipe), told)
    follow(PretrainRequest(chosen, data, output, vocab, init_model=model, device=device, shard=shard))
