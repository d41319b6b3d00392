"""`bertworks verify-resume`: kill a recipe at random moments, resume it, and say whether that changed a bit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bertworks.cli.options import Vocabulary
from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.commands.pretrain.verify_resume import VerifyRequest, verify_resume
from bertworks.settings import read_recipe, recipe_path

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("verify-resume")
def verify_resume_verb(
    recipe: Annotated[str, typer.Argument(help="A recipe: a .toml file or a name such as mini or paper-base.")],
    data: Annotated[Path, typer.Option(help="The corpus folder that `bertworks prepare` made.")],
    steps: Annotated[int, typer.Option(help="Shorten the recipe to so many steps.")] = 30,
    kills: Annotated[int, typer.Option(help="How often to kill it.")] = 3,
    seed: Annotated[int, typer.Option(help="Of the moments at which it is killed.")] = 0,
    vocab: Vocabulary = None,
) -> None:
    """Run RECIPE undisturbed, and once more killed at random moments and resumed; compare batches, weights and moments.

    Prints `identical`, or the first thing that differs and its step, and then exits with 1.
    """
    chosen = read_recipe(recipe_path(recipe), PretrainRecipe)
    request = VerifyRequest(chosen, data, vocab, steps, kills, seed)
    verdict = verify_resume(request, lambda text: print(text, file=sys.stderr, flush=True))
    told = f"{verdict.num_steps} steps, killed and resumed {verdict.num_kills} times"
    if verdict.first_difference is None:
        print(f"identical: {told}")
        return
    step, name = verdict.first_difference
    print(f"different from step {step} on: {name} ({told})")
    raise typer.Exit(1)
