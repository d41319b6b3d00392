"""`bertworks adapt`: a model and a corpus of a domain in, a run folder with the adapted model out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bertworks.cli.pretrain import changed, follow
from bertworks.runs.pretrain import PretrainRequest
from bertworks.runs.recipe import Recipe, recipe_path
from bertworks.settings import read_recipe
from bertworks.training.devices import DEVICES, PRECISIONS

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("adapt")
def adapt_verb(
    model: Annotated[str, typer.Argument(help="The model to go on from: its folder, or a name on the hub.")],
    data: Annotated[Path, typer.Option(help="The corpus folder that `bertworks prepare` made of the domain's text.")],
    out: Annotated[Path, typer.Option(help="The run folder to make or continue.")],
    recipe: Annotated[str, typer.Option(help="A recipe: a .toml file or a name. Its [model] is not used.")] = "adapt",
    budget: Annotated[str, typer.Option(help="Train for so long, such as 30m or 2h, instead of the steps.")] = "",
    batch: Annotated[int | None, typer.Option(help="Examples of a step, instead of the recipe's.")] = None,
    rate: Annotated[float | None, typer.Option(help="The peak learning rate, instead of the recipe's.")] = None,
    seed: Annotated[int | None, typer.Option(help="Another seed, another run.")] = None,
    vocab: Annotated[str | None, typer.Option(help="Which vocabulary of the corpus, by its hash.")] = None,
    device: Annotated[str, typer.Option(help=f"Where to compute: {', '.join(DEVICES)}.")] = "auto",
    precision: Annotated[str | None, typer.Option(help=f"Of products: {', '.join(PRECISIONS)}.")] = None,
) -> None:
    """Continue the pretraining of MODEL on a corpus of its own or of an extended vocabulary.

    Extend one with `bertworks vocab extend MODEL …`: each new piece begins as the mean of the pieces it replaces.
    Ctrl-C saves and leaves; the same command continues, and the result is the same to the bit.
    """
    told = {"budget": budget or None, "batch": batch, "rate": rate, "seed": seed, "precision": precision}
    chosen = changed(read_recipe(recipe_path(recipe), Recipe), told)
    follow(PretrainRequest(chosen, data, out, vocab, start=model, device=device))
