"""`bertworks pretrain`: a recipe and a corpus in, a run folder with a model out."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from bertworks.cli.options import Vocabulary
from bertworks.cli.training_options import BatchSize, Budget, Device, LearningRate, Precision, RunFolder, Seed, Shard
from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.commands.pretrain.run import PretrainRequest, TrainEvent, pretrain
from bertworks.records import SampleRecord, read_records
from bertworks.settings import read_recipe, recipe_path
from bertworks.training.process_group import is_main_process

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("pretrain")
def pretrain_verb(
    recipe: Annotated[str, typer.Argument(help="A recipe: a .toml file or a name such as mini or paper-base.")],
    data: Annotated[Path, typer.Option(help="The corpus folder that `bertworks prepare` made.")],
    output: RunFolder,
    budget: Budget = "",
    batch_size: BatchSize = None,
    learning_rate: LearningRate = None,
    seed: Seed = None,
    vocab: Vocabulary = None,
    device: Device = "auto",
    precision: Precision = None,
    shard: Shard = False,
) -> None:
    """Pretrain a BERT by RECIPE on a prepared corpus.

    Ctrl-C saves and leaves; the same command continues, and the result is the same to the bit.
    """
    told = {"budget": budget or None, "batch": batch_size, "rate": learning_rate, "seed": seed, "precision": precision}
    chosen = override_recipe(read_recipe(recipe_path(recipe), PretrainRecipe), told)
    follow(PretrainRequest(chosen, data, output, vocab, device=device, shard=shard))


def override_recipe(recipe: PretrainRecipe, overrides: Mapping[str, Any]) -> PretrainRecipe:
    """Return the recipe with what was said on the command line; None was not said."""
    return replace(recipe, **{name: value for name, value in overrides.items() if value is not None})


def follow(request: PretrainRequest) -> None:
    """Run, tell what happens, and show how the first and the last model fill the same blanks."""
    lines = PretrainPrinter()
    for told in pretrain(request):
        lines.show(told)
    if is_main_process():
        _show_masked_samples(request.output)


def _show_masked_samples(output: Path) -> None:
    """Print how the first and the last model of the run fill the same blanks of held-out text."""
    samples = [record for record in read_records(output) if isinstance(record, SampleRecord)]
    if not samples:
        return
    steps = sorted({record.step for record in samples})
    console = Console(highlight=False)
    for last in [record for record in samples if record.step == steps[-1]][:4]:
        first = next(record for record in samples if record.text == last.text and record.step == steps[0])
        console.print(Text(f"\n{last.text}", style="bold"))
        for record in (first, last) if steps[0] != steps[-1] else (last,):
            told = ", ".join(f"{piece} {chance:.1%}" for piece, chance in record.predictions[0][:5])
            console.print(Text(f"  step {record.step:>7,}: {told}"))


def format_duration(seconds: float) -> str:
    """Return a time as people say it: 40 s, 12 min, 3 h 20 min, 5 d 4 h."""
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86400
    if minutes < 2:
        return f"{seconds:.0f} s"
    if hours < 2:
        return f"{minutes:.0f} min"
    if days < 2:
        return f"{int(hours)} h {int(minutes) % 60} min"
    return f"{int(days)} d {int(hours) % 24} h"


class PretrainPrinter:
    """Says what happens: every step replaces the last on a terminal; elsewhere one line every hundred steps."""

    def __init__(self) -> None:
        self._is_line_open = False

    def show(self, event: TrainEvent) -> None:
        if event.step is not None:
            step = event.step
            losses = ", ".join(f"{name} {loss:.3f}" for name, loss in step.losses.items())
            losses += " (frequencies {:.2f}, guessing {:.2f})".format(*event.reference_losses)
            speed = f"{step.num_tokens / step.seconds:,.0f} pieces/s"
            text = f"step {step.number:,}: {losses}; rate {step.learning_rate:.1e}; {speed}; {format_duration(event.seconds_left)} left"
            if sys.stdout.isatty():
                print(f"\r\x1b[K{text}", end="", flush=True)
                self._is_line_open = True
            elif step.number % 100 == 0:
                print(text, flush=True)
            return
        if self._is_line_open:
            print()
            self._is_line_open = False
        if event.held_out is not None:
            one = event.held_out
            pair = "" if one.pair_accuracy is None else f", pairs right {one.pair_accuracy:.1%}"
            print(
                f"held out, step {one.step:,}: loss {one.loss:.3f}, pieces right {one.accuracy:.1%}{pair}", flush=True
            )
        elif event.checkpoint_path is not None:
            print(f"saved {event.checkpoint_path}", flush=True)
        elif event.warning:
            print(f"warning: {event.warning}", file=sys.stderr, flush=True)
        else:
            print(event.note, flush=True)
