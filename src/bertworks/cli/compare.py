"""`bertworks compare`: a recipe of members, a corpus and labelled sets in; one table and one picture out."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markdown import Markdown

from bertworks.cli.finetune import FinetunePrinter as TuningLines
from bertworks.cli.options import Ray, RayCpus, Vocabulary
from bertworks.cli.pretrain import PretrainPrinter as PretrainLines
from bertworks.cli.training_options import Device, RunFolder
from bertworks.commands.compare.member import CompareEvent
from bertworks.commands.compare.recipe import BUILTIN_RECIPES, read_compare_recipe
from bertworks.commands.compare.run import CompareRequest, compare
from bertworks.commands.finetune.request import FinetuneEvent as TuningTold
from bertworks.commands.pretrain.run import TrainEvent as PretrainTold
from bertworks.commands.ray_runs import compare_on, open_ray_pool
from bertworks.errors import SettingsError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("compare")
def compare_verb(
    recipe: Annotated[
        str, typer.Argument(help=f"A .toml file, or one that is built in: {', '.join(BUILTIN_RECIPES)}.")
    ],
    output: RunFolder,
    data: Annotated[Path | None, typer.Option(help="The corpus folder that `bertworks prepare` made.")] = None,
    vocab: Vocabulary = None,
    sets: Annotated[Path | None, typer.Option(help="The folder that holds the published sets among the tasks.")] = None,
    task: Annotated[
        list[str] | None, typer.Option(help="A published set, instead of the recipe's tasks; may be repeated.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Of each pretraining: '800 steps', '2M pieces', '5e12 flops', or 30m of time.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Repeat with so many seeds: 0, 1, …")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only this member; may be repeated.")] = None,
    pretrain_set: Annotated[
        list[str] | None,
        typer.Option(help="Of every pretraining recipe, such as model.size=tiny or batch=16; may be repeated."),
    ] = None,
    finetune_set: Annotated[
        list[str] | None, typer.Option(help="Of every fine-tuning, such as epochs=2 or rate=1e-4; may be repeated.")
    ] = None,
    device: Device = "auto",
    ray: Ray = None,
    ray_cpus: RayCpus = 1,
) -> None:
    """Pretrain the members of RECIPE on one corpus with one budget, fine-tune each on the same tasks, and compare.

    Every member is pretrained once a seed and scored on the dev sets. The table has mean and deviation over the seeds,
    the held-out loss, and what it took: operations, pieces, minutes. The picture has quality against operations.
    Ctrl-C saves and leaves; the same command continues, and what is finished is never run again. A member that fails
    is named with its error, and the others go on; the same command tries it again.

    \b
    Built in:
      family       BERT, RoBERTa, ALBERT, GPT, XLNet, ELMo and ULMFiT at one size, with one vocabulary
      ablations    BERT as it is, without pairs, to the left only, and that with a BiLSTM on top
      masking      the six mixes of [MASK], same and random pieces of the BERT paper
      sizes        depth and width
      convergence  masked against left-to-right: scores at several steps of the same runs
    """
    told: dict[str, Any] = {
        "corpus": data, "corpus_vocabulary": vocab, "sets": sets, "budget": budget,
        "seeds": None if seeds is None else tuple(range(seeds)),
    }  # fmt: skip
    chosen = read_compare_recipe(recipe, {name: value for name, value in told.items() if value is not None})
    chosen = chosen.with_overrides(
        task or [], only or [], parse_overrides(pretrain_set or []), parse_overrides(finetune_set or [])
    )
    lines, request = _ComparePrinter(), CompareRequest(chosen, output, device)
    if ray is None:
        report = compare(request, on_event=lines.show)
    else:
        with open_ray_pool(ray, device, ray_cpus) as pool:
            report = compare_on(pool, request, lines.show)
    Console(highlight=False).print(Markdown(report.markdown))
    for name, path in report.files.items():
        print(f"{name}: {path}")
    if report.failures:
        raise typer.Exit(1)


def parse_overrides(assignments: list[str]) -> dict[str, Any]:
    """Return "model.size=tiny" and others as the tables of a recipe."""
    found: dict[str, Any] = {}
    for one in assignments:
        key, equals, value = one.partition("=")
        if not equals or not all(key.split(".")):
            raise SettingsError(f"'{one}' changes nothing; write it as model.size=tiny")
        place = found
        *above, last = key.split(".")
        for name in above:
            place = place.setdefault(name, {})
        place[last] = _parse_value(value)
    return found


def _parse_value(text: str) -> Any:
    """Return a value as TOML reads it; what is none there is a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


class _ComparePrinter:
    """Says what the runs say, each kind in the words of its own verb."""

    def __init__(self) -> None:
        self._pretrain_printer, self._finetune_printer = PretrainLines(), TuningLines()

    def show(self, event: CompareEvent) -> None:
        if isinstance(event, PretrainTold):
            self._pretrain_printer.show(event)
        elif isinstance(event, TuningTold):
            self._finetune_printer.show(event)
        else:
            print(event, flush=True)
