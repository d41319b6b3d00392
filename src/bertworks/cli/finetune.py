"""`bertworks finetune`: a pretrained model and labelled files in, a run folder with a sealed model out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand

from bertworks.cli.evaluate import score_table
from bertworks.cli.options import Ray, RayCpus, Targets
from bertworks.cli.progress import show_progress
from bertworks.commands.finetune.recipe import FinetuneRecipe, default_learning_rate
from bertworks.commands.finetune.request import FinetuneEvent, FinetuneRequest
from bertworks.commands.finetune.run import run_finetune
from bertworks.commands.finetune.submissions import BenchmarkDataset
from bertworks.commands.finetune.sweep import Outcome, grid_of, seeds_of, sweep
from bertworks.commands.finetune.targets import resolve_dataset
from bertworks.commands.ray_runs import open_ray_pool, sweep_on
from bertworks.embeddings.strategies import STRATEGIES
from bertworks.errors import SettingsError
from bertworks.settings import from_table, recipe_path, recipe_table
from bertworks.training.devices import DEVICES

app = typer.Typer(add_completion=False, rich_markup_mode=None)

# What `--test` stands for where no file follows it: the test files of a published set are to be handed in.
PUBLISHED_TEST = Path("the set's own")


class OptionalTestCommand(TyperCommand):
    """A command whose option --test may stand without a file; the parser knows no option of two kinds."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        lone = [
            number
            for number, word in enumerate(args)
            if word == "--test" and (number + 1 == len(args) or args[number + 1].startswith("--"))
        ]
        return super().parse_args(
            ctx, [f"--test={PUBLISHED_TEST}" if at in lone else word for at, word in enumerate(args)]
        )


@app.command("finetune", cls=OptionalTestCommand)
def finetune_verb(
    task: Annotated[
        str,
        typer.Argument(
            help="classify, regress, choose, tag, answer or translate; or a published set such as glue/MRPC."
        ),
    ],
    output: Annotated[Path, typer.Option(help="The run folder to make or continue.")],
    model: Annotated[str, typer.Option(help="The pretrained model: a folder, or a name on the hub.")] = "",
    vocab: Annotated[
        Path | None, typer.Option(help="The vocabulary of a new model, whose sizes a recipe such as transformer tells.")
    ] = None,
    train: Annotated[Path | None, typer.Option(help="Labelled file: TSV, CSV, JSON Lines; .gz too.")] = None,
    dev: Annotated[Path | None, typer.Option(help="Labelled file that chooses the best step.")] = None,
    test: Annotated[
        Path | None,
        typer.Option(
            help="Labelled file that is only scored, at the end. Without a file: predict the test files of a published "
            "set and write what its benchmark wants."
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="The folder of a published set; python-docs is written there.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Settings: a .toml file, or ulmfit (discriminative rates, gradual unfreezing).")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples of a step (32).")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="The peak learning rate (3e-5; with features 1e-3).")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="How often all examples are seen (3).")] = None,
    seed: Annotated[int | None, typer.Option(help="Another seed, another run.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Places of a row; longer texts slide over several.")] = None,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut long texts instead, and count.")] = False,
    text: Annotated[str | None, typer.Option(help="The column of the text.")] = None,
    pair: Annotated[str | None, typer.Option(help="The column of the second text.")] = None,
    label: Annotated[str | None, typer.Option(help="The column of the label, or of the translation.")] = None,
    targets: Targets = None,
    auxiliary: Annotated[str | None, typer.Option(help="masked or next: learn such pieces besides.")] = None,
    auxiliary_weight: Annotated[float, typer.Option(help="How much that weighs (GPT's paper: 0.5).")] = 0.1,
    feature_layers: Annotated[
        str | None,
        typer.Option(help=f"Freeze the model and train a BiLSTM on its layers: {', '.join(STRATEGIES)}."),
    ] = None,
    evals_per_epoch: Annotated[int | None, typer.Option(help="How often dev is measured in an epoch (1).")] = None,
    patience: Annotated[int | None, typer.Option(help="Stop after so many measurements without a better one.")] = None,
    target_metric: Annotated[str | None, typer.Option(help="Stop when dev reaches it, such as accuracy=0.9.")] = None,
    grid: Annotated[bool, typer.Option("--sweep", help="Try the paper's grid: batch x rate x epochs.")] = False,
    pair_order: Annotated[
        str | None, typer.Option(help="both: read a pair in both orders, as GPT does for likeness (given).")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Repeat with so many seeds; tells mean and deviation.")] = 1,
    device: Annotated[str, typer.Option(help=f"Where to compute: {', '.join(DEVICES)}.")] = "auto",
    ray: Ray = None,
    ray_cpus: RayCpus = 1,
) -> None:
    """Fine-tune MODEL for TASK on labelled files. Ctrl-C saves and leaves; the same command continues."""
    if auxiliary not in (None, "masked", "next"):
        raise typer.BadParameter(f"there is no auxiliary loss '{auxiliary}'; choose one of: masked, next")
    told: dict[str, Any] = {
        "batch": batch_size, "rate": learning_rate, "epochs": epochs, "seed": seed, "length": max_length, "evaluations": evals_per_epoch,
        "patience": patience, "until": target_metric, "truncate": truncate or None, "features": feature_layers,
        "masked_weight": auxiliary_weight if auxiliary == "masked" else None,
        "next_weight": auxiliary_weight if auxiliary == "next" else None,
        "orders": pair_order,
    }  # fmt: skip
    told = {name: value for name, value in told.items() if value is not None}
    told = {**(recipe_table(recipe_path(recipe, "finetune")) if recipe else {}), **told}
    chosen = from_table(FinetuneRecipe, told, recipe or "the options")
    if grid and chosen.feature_layers:
        raise typer.BadParameter("the grid of --sweep is for whole models; with --features try rates and seeds by hand")
    roles = (("text", text), ("pair", pair), ("label", label), ("targets", targets))
    columns = {role: column for role, column in roles if column}
    hands_in = test == PUBLISHED_TEST
    target = resolve_dataset(task, {"train": train, "dev": dev, "test": None if hands_in else test}, data, columns)
    if target.file("train") is None:
        raise typer.BadParameter("name the labelled training file with --train")
    published = BenchmarkDataset(task, data) if data is not None and "set" in target.settings else None
    if hands_in:
        _check_submission(published)
    if model and "rate" not in told and not chosen.feature_layers:
        chosen = replace(chosen, learning_rate=default_learning_rate(model))
    request = FinetuneRequest(
        target.task, model, target.files["train"], output, target.file("dev"), target.file("test"), chosen,
        target.columns, target.settings, device, output / "features", vocabulary=vocab,
    )  # fmt: skip
    tunings = [again for tuning in (grid_of(chosen) if grid else [chosen]) for again in seeds_of(tuning, seeds)]
    if ray is not None and len(tunings) < 2:
        raise typer.BadParameter("--ray is for several runs at once; ask for them with --sweep or --seeds")
    if ray is not None:
        with open_ray_pool(ray, device, ray_cpus) as pool:
            best = _best_of(sweep_on(pool, request, tunings), len(tunings))
    else:
        best = _best_of(sweep(request, tunings), len(tunings)) if len(tunings) > 1 else _run(request)
    if best is None or published is None:
        return
    if dev is None:
        _show_other_dev_scores(published, best)
    if hands_in:
        _write_submission(published, best, output)


def _check_submission(published: BenchmarkDataset | None) -> None:
    if published is None:
        raise SettingsError(
            "--test without a file is for published sets such as glue/MRPC, in a folder given with --data; name a "
            "labelled file behind it"
        )
    published.submission_splits()


def _show_other_dev_scores(published: BenchmarkDataset, run: Path) -> None:
    """Score the other dev sets, if the set has more than one, and show all side by side."""
    with show_progress() as watch:
        scores = published.score_other_dev_sets(run, watch)
    if scores:
        Console(highlight=False).print(score_table(scores))


def _write_submission(published: BenchmarkDataset, run: Path, output: Path) -> None:
    with show_progress() as watch:
        written = list(published.write_submissions(run / "model", output, watch))
    for path, count in written:
        print(f"to hand in: {path}, {count:,} predictions")


def _run(request: FinetuneRequest) -> Path | None:
    """Do one run; return its folder, or nothing if somebody stopped it."""
    lines, is_sealed = FinetunePrinter(), False
    for one in run_finetune(request):
        lines.show(one)
        is_sealed = is_sealed or one.model_folder is not None
    return request.output if is_sealed else None


def _best_of(events: Iterator[FinetuneEvent | Outcome], num_runs: int) -> Path | None:
    """Do all runs and show what they came to; return the folder of the best, or nothing if somebody stopped them."""
    lines = FinetunePrinter()
    outcomes: list[Outcome] = []
    for one in events:
        if isinstance(one, Outcome):
            outcomes.append(one)
        else:
            lines.show(one)
    if not outcomes:
        return None
    table = Table("batch", "rate", "epochs", "dev", "deviation", "seeds", box=None)
    for row in Outcome.table(outcomes):
        table.add_row(*row)
    Console(highlight=False).print(table)
    best = max(outcomes, key=lambda outcome: outcome.score)
    print(f"best: {best.folder}")
    return best.folder if len(outcomes) == num_runs else None


class FinetunePrinter:
    """Says what happens: every step replaces the last on a terminal; elsewhere a line now and then."""

    def __init__(self) -> None:
        self._is_line_open = False

    def show(self, event: FinetuneEvent) -> None:
        if event.step is not None:
            self._show_step(event)
            return
        if self._is_line_open:
            print()
            self._is_line_open = False
        if event.score is not None:
            figures = ", ".join(f"{name} {value:.4f}" for name, value in event.score.metrics.items())
            print(f"{event.score.split}, step {event.score.step:,}: {figures}", flush=True)
        elif event.warning:
            print(f"warning: {event.warning}", file=sys.stderr, flush=True)
        else:
            print(event.note, flush=True)

    def _show_step(self, event: FinetuneEvent) -> None:
        step = event.step
        assert step is not None
        losses = ", ".join(f"{name} {loss:.3f}" for name, loss in step.losses.items())
        left = step.seconds / step.number * (event.num_steps - step.number)
        text = (
            f"step {step.number:,} of {event.num_steps:,}: {losses}; rate {step.learning_rate:.1e}; {left:,.0f} s left"
        )
        if sys.stdout.isatty():
            print(f"\r\x1b[K{text}", end="", flush=True)
            self._is_line_open = True
        elif step.number % 50 == 0:
            print(text, flush=True)
