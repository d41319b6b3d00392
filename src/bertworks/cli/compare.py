"""`bertworks compare`: a recipe of members, a corpus and labelled datasets in; one table and one figure out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertworks.choices import COMPARE_RECIPES
from bertworks.cli.command import Command, command_app
from bertworks.cli.completion import complete_compare_recipe
from bertworks.cli.console import say
from bertworks.cli.options import Device, Ray, RayCpus, RunFolder, Vocabulary
from bertworks.cli.printers import PRETRAIN_LOG_STEPS, FinetunePrinter, PretrainPrinter, StatusLine

if TYPE_CHECKING:
    from bertworks.commands.compare.member import CompareEvent

app = command_app()


@app.command("compare", cls=Command)
def compare_command(
    recipe: Annotated[
        str,
        typer.Argument(
            help=f"A .toml file, or a built-in one: {', '.join(COMPARE_RECIPES)}.",
            autocompletion=complete_compare_recipe,
        ),
    ],
    output: RunFolder,
    data: Annotated[Path | None, typer.Option(help="A corpus folder written by `bertworks prepare`.")] = None,
    vocab: Vocabulary = None,
    sets: Annotated[Path | None, typer.Option(help="Folder of the published datasets among the tasks.")] = None,
    task: Annotated[
        list[str] | None, typer.Option(help="A published dataset, instead of the recipe's tasks; may be repeated.")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="Budget of each pretraining: '800 steps', '2M tokens', '5e12 flops', or 30m of time."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Repeat with this many seeds: 0, 1, …")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only this member; may be repeated.")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE",
            help="Override a key of every run, such as pretrain.batch_size=16 or finetune.epochs=2; may be repeated.",
        ),
    ] = None,
    device: Device = "auto",
    ray: Ray = None,
    ray_cpus: RayCpus = 1,
) -> None:  # fmt: skip
    """Pretrain the members of RECIPE on one corpus with one budget, fine-tune each on the same tasks, and compare.

    Every member is pretrained once per seed and scored on the dev sets. The table has mean and standard deviation over
    the seeds, the held-out loss, and the cost: FLOPs, tokens, minutes. The figure has quality against FLOPs. Ctrl-C
    saves and exits with 130; the same command continues, and a finished run is never repeated. A member that fails is
    named with its error, and the others continue.

    \b
    Built in:
      family       BERT, RoBERTa, ALBERT, GPT, XLNet, ELMo and ULMFiT at one size, with one vocabulary
      ablations    BERT, without NSP, causal, and causal with a BiLSTM on top
      masking      the BERT paper's six ratios of [MASK], unchanged and random tokens
      sizes        number of layers and hidden size
      convergence  masked against causal LM: scores at several steps of the same runs
    """
    from bertworks.commands.compare.recipe import read_compare_recipe
    from bertworks.commands.compare.run import CompareRequest, compare

    options: dict[str, Any] = {
        "corpus": data, "corpus_vocabulary": vocab, "sets": sets, "budget": budget,
        "seeds": None if seeds is None else tuple(range(seeds)),
    }  # fmt: skip
    settings = read_compare_recipe(recipe, {name: value for name, value in options.items() if value is not None})
    settings = settings.with_overrides(task or [], only or [], overrides or [])
    request = CompareRequest(settings, output, device)
    with StatusLine(PRETRAIN_LOG_STEPS) as line:
        printer = _ComparePrinter(line)
        if ray is None:
            report = compare(request, on_event=printer.show)
        else:
            from bertworks.commands.ray_runs import compare_on, open_ray_pool

            with open_ray_pool(ray, device, ray_cpus) as pool:
                report = compare_on(pool, request, printer.show)
    from rich.console import Console
    from rich.markdown import Markdown

    Console(highlight=False).print(Markdown(report.markdown))
    for name, path in report.files.items():
        say(f"{name}: {path}")
    if report.is_interrupted:
        raise typer.Exit(130)
    if report.failures:
        raise typer.Exit(1)


class _ComparePrinter:
    """Prints the events of all runs, each kind as its own command does."""

    def __init__(self, line: StatusLine) -> None:
        self._pretrain_printer, self._finetune_printer = PretrainPrinter(line), FinetunePrinter(line)

    def show(self, event: CompareEvent) -> None:
        from bertworks.commands.finetune.request import FinetuneEvent
        from bertworks.commands.pretrain.request import TrainEvent

        if isinstance(event, TrainEvent):
            self._pretrain_printer.show(event)
        elif isinstance(event, FinetuneEvent):
            self._finetune_printer.show(event)
        else:
            say(str(event))
