"""`bertworks verify-resume`: kill a run at random moments, resume it, and report whether any bit changed."""

from __future__ import annotations

from typing import Annotated

import typer

from bertworks.cli.command import Command, command_app
from bertworks.cli.console import say
from bertworks.cli.options import CorpusFolder, RecipeArgument, Vocabulary
from bertworks.cli.progress import show_progress
from bertworks.progress import begin_stage
from bertworks.settings import recipe_path

app = command_app()


@app.command("verify-resume", cls=Command)
def verify_resume_command(
    recipe: RecipeArgument,
    data: CorpusFolder,
    steps: Annotated[int, typer.Option(help="Shorten the recipe to this many steps.")] = 30,
    kills: Annotated[int, typer.Option(help="How often to kill the run.")] = 3,
    seed: Annotated[int, typer.Option(help="Random seed of the moments at which it is killed.")] = 0,
    vocab: Vocabulary = None,
) -> None:
    """Run RECIPE undisturbed, and once more killed and resumed; compare batches, weights and optimizer state.

    Prints `identical`, or the first difference and its step, and then exits with 1.
    """
    path = recipe_path(recipe)
    from bertworks.commands.pretrain.recipe import PretrainRecipe
    from bertworks.commands.pretrain.verify_resume import VerifyRequest, verify_resume
    from bertworks.settings import read_recipe

    request = VerifyRequest(
        recipe=read_recipe(path, PretrainRecipe),
        corpus=data,
        vocabulary=vocab,
        num_steps=steps,
        num_kills=kills,
        seed=seed,
    )
    with show_progress(log_stages=True) as on_progress:
        verdict = verify_resume(request, lambda text: on_progress(begin_stage(text)))
    summary = f"{verdict.num_steps} steps, killed and resumed {verdict.num_kills} times"
    if verdict.first_difference is None:
        say(f"identical: {summary}")
        return
    step, name = verdict.first_difference
    say(f"different from step {step} on: {name} ({summary})")
    raise typer.Exit(1)
