"""`bertworks finetune`: a pretrained model and labelled data in, a run folder with a fine-tuned model out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertworks.cli.command import Command, choice, command_app
from bertworks.cli.completion import complete_finetune_recipe, complete_model, complete_task
from bertworks.cli.console import say
from bertworks.cli.options import (
    BatchSize,
    Device,
    Epochs,
    LabelColumn,
    LearningRate,
    MaxLength,
    Overrides,
    PairColumn,
    Precision,
    Ray,
    RayCpus,
    RunFolder,
    Seed,
    TargetsSuffix,
    TextColumn,
    Track,
    columns_of,
)
from bertworks.cli.printers import FINETUNE_LOG_STEPS, FinetunePrinter, StatusLine
from bertworks.cli.progress import show_progress
from bertworks.errors import SettingsError
from bertworks.messages import fill, localize
from bertworks.settings import recipe_path

if TYPE_CHECKING:
    from bertworks.commands.finetune.recipe import FinetuneRecipe
    from bertworks.commands.finetune.request import FinetuneEvent, FinetuneRequest
    from bertworks.commands.finetune.submissions import BenchmarkDataset
    from bertworks.commands.finetune.sweep import Outcome

app = command_app()

# The value of `--test` without a file: predict the unlabelled test files of a published dataset for its benchmark.
PUBLISHED_TEST = Path("published test files")
# Weight of `--auxiliary`; --set mlm_weight=… or lm_weight=… gives another.
_AUXILIARY_WEIGHT = 0.1
_AUXILIARY_KEYS = {"mlm": "mlm_weight", "causal": "lm_weight"}


class OptionalTestCommand(Command):
    """A command whose option --test may have no value: an option of click either always takes one or never does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        bare = [
            index
            for index, word in enumerate(args)
            if word == "--test" and (index + 1 == len(args) or args[index + 1].startswith("--"))
        ]
        words = [f"--test={PUBLISHED_TEST}" if index in bare else word for index, word in enumerate(args)]
        return super().parse_args(ctx, words)


@app.command("finetune", cls=OptionalTestCommand)
def finetune_command(
    task: Annotated[
        str,
        typer.Argument(
            help="A task such as classify, tag or answer, or a published dataset such as glue/MRPC.",
            autocompletion=complete_task,
        ),
    ],
    output: RunFolder,
    model: Annotated[
        str,
        typer.Option(
            help="The pretrained model: a folder, en-small or zh-small, or a name on the hub.",
            autocompletion=complete_model,
        ),
    ] = "",
    vocab: Annotated[
        Path | None, typer.Option(help="Without --model: vocabulary of a new model of the recipe's [model].")
    ] = None,
    train: Annotated[Path | None, typer.Option(help="Labelled training file: TSV, CSV, JSON Lines; .gz too.")] = None,
    dev: Annotated[Path | None, typer.Option(help="Labelled file that selects the best checkpoint.")] = None,
    test: Annotated[
        Path | None,
        typer.Option(
            help="Labelled file that is scored once, at the end. Without a file: predict the test files of a published "
            "dataset and write its submission."
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of a published dataset; python-docs is written there.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="A .toml file, or a name: paper, ulmfit (gradual unfreezing) or transformer.",
            autocompletion=complete_finetune_recipe,
        ),
    ] = None,
    learning_rate: LearningRate = None,
    batch_size: BatchSize = None,
    epochs: Epochs = None,
    max_length: MaxLength = None,
    seed: Seed = None,
    precision: Precision = None,
    device: Device = "auto",
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    targets: TargetsSuffix = None,
    auxiliary: Annotated[
        str | None, choice("auxiliary loss", tuple(_AUXILIARY_KEYS), "Language-model loss beside the task's.")
    ] = None,
    adapt_epochs: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Before the labels are learned: passes over the training texts with the model's own language-model "
            "objective, such as masked LM.",
        ),
    ] = None,
    overrides: Overrides = None,
    grid: Annotated[
        bool, typer.Option("--sweep", help="Search the paper's grid: batch size x learning rate x epochs.")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Repeat with this many seeds; prints mean and deviation.")] = 1,
    track: Track = None,
    ray: Ray = None,
    ray_cpus: RayCpus = 1,
) -> None:
    """Fine-tune MODEL for TASK on labelled data. Other settings of the recipe: --set KEY=VALUE.

    Long texts are split into windows (--set truncate=true truncates them). --set feature_layers=concat-last-four trains
    a BiLSTM on frozen features. Ctrl-C saves a checkpoint and exits with 130; the same command continues.
    """
    path = recipe_path(recipe, "finetune") if recipe else None
    options = {
        "learning_rate": learning_rate, "batch_size": batch_size, "epochs": epochs, "max_length": max_length,
        "seed": seed, "precision": precision, "adapt.epochs": adapt_epochs,
    }  # fmt: skip
    if auxiliary is not None:
        options[_AUXILIARY_KEYS[auxiliary]] = _AUXILIARY_WEIGHT
    is_submission = test == PUBLISHED_TEST
    from bertworks.commands.finetune.dataset import resolve_dataset
    from bertworks.commands.finetune.recipe import read_finetune_recipe
    from bertworks.commands.finetune.request import FinetuneRequest
    from bertworks.commands.finetune.submissions import BenchmarkDataset

    settings = read_finetune_recipe(path, options, overrides or [])
    files = {"train": train, "dev": dev, "test": None if is_submission else test}
    columns = columns_of(text=text, pair=pair, label=label, targets=targets)
    target = resolve_dataset(task, files, data, columns)
    if target.file("train") is None:
        raise SettingsError("there is no training data; name the labelled file with --train")
    published = BenchmarkDataset(task, data) if data is not None and "set" in target.settings else None
    if is_submission:
        _check_submission(published)
    request = FinetuneRequest(
        task=target.task, model=model, train=target.files["train"], output=output, dev=target.file("dev"),
        test=target.file("test"), recipe=settings, columns=target.columns, settings=target.settings, device=device,
        feature_folder=output / "features", vocabulary=vocab,
    )  # fmt: skip
    if ray is not None and track:
        raise SettingsError("--track follows the runs of this process; leave out --ray or --track")
    recipes = _recipes_of(request, grid, seeds)
    best = _run_on_ray(request, recipes, ray, ray_cpus) if ray is not None else _run_all(request, recipes, track or [])
    if published is None:
        return
    if dev is None:
        _show_other_dev_scores(published, best)
    if is_submission:
        _write_submission(published, best, output)


def _recipes_of(request: FinetuneRequest, grid: bool, seeds: int) -> list[FinetuneRecipe]:
    """Return the recipe of each run: one, or those of the grid and seeds."""
    from bertworks.commands.finetune.sweep import grid_of, resolved, seeds_of

    if grid and request.recipe.feature_layers:
        raise SettingsError("--sweep searches over whole-model fine-tuning; leave out feature_layers")
    if seeds > 1 and not grid:
        request = resolved(request)
    return [
        seed_recipe
        for settings in (grid_of(request.recipe) if grid else [request.recipe])
        for seed_recipe in seeds_of(settings, seeds)
    ]


def _run_on_ray(request: FinetuneRequest, recipes: list[FinetuneRecipe], ray: str, ray_cpus: int) -> Path:
    """Do several runs on a cluster; return the folder of the best."""
    from bertworks.commands.ray_runs import open_ray_pool, sweep_on

    if len(recipes) < 2:
        raise SettingsError("--ray is for several runs at once; add --sweep or --seeds")
    with open_ray_pool(ray, request.device, ray_cpus) as pool:
        return _best_of(sweep_on(pool, request, recipes), len(recipes))


def _run_all(request: FinetuneRequest, recipes: list[FinetuneRecipe], track: list[str]) -> Path:
    """Do one run after the other; return the folder of the best."""
    from bertworks.commands.finetune.run import run_finetune
    from bertworks.commands.finetune.sweep import sweep
    from bertworks.training.trackers import track_events

    if len(recipes) > 1:
        return _best_of(sweep(request, recipes, track), len(recipes))
    is_finished = False
    with StatusLine(FINETUNE_LOG_STEPS) as line:
        printer = FinetunePrinter(line)
        for event in track_events(run_finetune(request), track, request.output):
            printer.show(event)
            is_finished = is_finished or event.model_folder is not None
    if not is_finished:  # Ctrl-C: the last event said that a checkpoint was saved
        raise typer.Exit(130)
    return request.output


def _best_of(events: Iterator[FinetuneEvent | Outcome], num_runs: int) -> Path:
    """Print the events and outcomes of all runs; return the folder of the best."""
    from rich.console import Console
    from rich.table import Table

    from bertworks.commands.finetune.sweep import Outcome

    outcomes: list[Outcome] = []
    with StatusLine(FINETUNE_LOG_STEPS) as line:
        printer = FinetunePrinter(line)
        for event in events:
            if isinstance(event, Outcome):
                outcomes.append(event)
            else:
                printer.show(event)
    if outcomes:
        table = Table(*map(localize, ("batch size", "learning rate", "epochs", "dev", "std", "seeds")), box=None)
        for row in Outcome.table(outcomes):
            table.add_row(*row)
        Console(highlight=False).print(table)
        best = max(outcomes, key=lambda outcome: outcome.score)
        print(fill("best: {}", best.folder))
    if len(outcomes) < num_runs:  # Ctrl-C
        raise typer.Exit(130)
    return best.folder


def _check_submission(published: BenchmarkDataset | None) -> None:
    if published is None:
        raise SettingsError(
            "--test without a file writes the submission of a published dataset such as glue/MRPC, whose folder --data "
            "names; name a labelled file after --test"
        )
    published.submission_splits()


def _show_other_dev_scores(published: BenchmarkDataset, run: Path) -> None:
    """Score the further dev sets of a published dataset, if it has any, and print all scores side by side."""
    with show_progress() as on_progress:
        scores = published.score_other_dev_sets(run, on_progress)
    if scores:
        from rich.console import Console

        from bertworks.cli.evaluate import score_table

        Console(highlight=False).print(score_table(scores))


def _write_submission(published: BenchmarkDataset, run: Path, output: Path) -> None:
    with show_progress() as on_progress:
        submissions = list(published.write_submissions(run / "model", output, on_progress))
    for path, count in submissions:
        say(f"submission: {path}, {count:,} predictions")
