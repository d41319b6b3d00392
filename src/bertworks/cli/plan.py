"""`bertworks plan`: a corpus and a time in, a recipe out; or a recipe in, what it takes here, elsewhere or on many
machines out."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bertworks.cli.options import Vocabulary
from bertworks.cli.scale_table import show_scales
from bertworks.commands.plan.benchmark import Stopwatch
from bertworks.commands.plan.estimate import FORMULAS, PAPER_VOCABULARY, Estimate, EstimateRequest, estimate
from bertworks.commands.plan.forecast import LossBand
from bertworks.commands.plan.hardware import Hardware, hardware_by_rate, hardware_of
from bertworks.commands.plan.run import Plan, PlanRequest, plan
from bertworks.commands.plan.scale import Cluster, scaled
from bertworks.commands.pretrain.recipe import Recipe, as_toml, recipe_path
from bertworks.corpus.corpus import Corpus
from bertworks.disk import write_text
from bertworks.errors import SettingsError
from bertworks.parallel.machine import available_bytes
from bertworks.settings import read_recipe
from bertworks.training.devices import DEVICES, device_of

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_OUT = Path("plan.toml")


@app.command("plan")
def plan_verb(
    data: Annotated[Path | None, typer.Option(help="The corpus folder that `bertworks prepare` made.")] = None,
    budget: Annotated[str, typer.Option(help="Recommend a recipe for so much time, such as 2h.")] = "",
    recipe: Annotated[str, typer.Option(help="Instead tell what this recipe takes, such as paper-base.")] = "",
    out: Annotated[Path | None, typer.Option(help="Where the recipe goes; plan.toml by default.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file that is there.")] = False,
    vocab: Vocabulary = None,
    hardware: Annotated[list[str] | None, typer.Option(help="With --recipe: days on this, such as 8xA100.")] = None,
    flops: Annotated[float | None, typer.Option(help="The same by the peak rate of a device, such as 312e12.")] = None,
    devices: Annotated[int, typer.Option(min=1, help="How many devices of that rate.")] = 1,
    utilisation: Annotated[float, typer.Option(help="What share of that rate is really reached.")] = 0.25,
    nodes: Annotated[list[int] | None, typer.Option(help="The recipe on so many machines; may be repeated.")] = None,
    gpus: Annotated[int, typer.Option(help="Cards of a machine.")] = 8,
    gpu: Annotated[str, typer.Option(help="Of which kind: V100, A100, H100, …")] = "A100",
    network: Annotated[float, typer.Option(help="What a machine sends to others, in Gbit/s.")] = 100.0,
    shard: Annotated[bool, typer.Option("--shard", help="Spread the model over all cards.")] = False,
    device: Annotated[str, typer.Option(help=f"What to measure: {', '.join(DEVICES)}.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one line of JSON.")] = False,
) -> None:
    """Measure this machine for a minute, then recommend a recipe for a corpus and a time.

    With --recipe: tell how many days that recipe takes here and on other hardware. With --nodes: what it takes on many
    machines, by arithmetic alone.
    """
    if nodes:
        if budget or out is not None or hardware or flops is not None:
            raise SettingsError(
                "--nodes goes with --recipe, --data, --gpus, --gpu, --network and --shard, and no others"
            )
        clusters = [Cluster(count, gpus, hardware_of(gpu), network * 1e9 / 8) for count in nodes]
        vocabulary = PAPER_VOCABULARY if data is None else Corpus.open(data, vocab).tokenizer.size
        read = read_recipe(recipe_path(recipe or "paper-base"), Recipe)
        show_scales([scaled(read, vocabulary, one, shard) for one in clusters], as_json)
        return
    chosen = device_of(device)
    if budget and not recipe:
        if data is None:
            raise SettingsError("a plan needs a corpus; name the folder that `bertworks prepare` made with --data")
        if hardware or flops is not None:
            raise SettingsError("--hardware and --flops go with --recipe: a plan for a budget is measured here")
        path = _free(out or _OUT, force)
        request = PlanRequest(data, budget, vocab, available_bytes(chosen))
        _show_plan(plan(request, Stopwatch(chosen), _tell), path, data, as_json)
    elif recipe and not budget:
        if out is not None:
            raise SettingsError("--out goes with --budget: with --recipe nothing is written")
        asked = _hardware(hardware or [], flops, devices, utilisation)
        read = read_recipe(recipe_path(recipe), Recipe)
        found = estimate(EstimateRequest(read, data, vocab, asked, available_bytes(chosen)), Stopwatch(chosen), _tell)
        _show_estimate(found, as_json)
    else:
        raise SettingsError("give --budget, such as 2h, for a recommendation, or --recipe for what one takes; not both")


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _free(path: Path, force: bool) -> Path:
    """Return the path if it may be written; asked before a minute is spent on measuring."""
    if path.is_dir():
        raise SettingsError(f"{path} is a folder; name a file with --out, such as {path / _OUT}")
    if path.exists() and not force:
        raise SettingsError(f"{path} exists; choose another file with --out, or replace it with --force")
    return path


def _hardware(names: list[str], flops: float | None, devices: int, utilisation: float) -> tuple[Hardware, ...]:
    found = [hardware_of(name) for name in names]
    if flops is not None:
        found.append(hardware_by_rate(flops, devices, utilisation))
    return tuple(found)


def _show_plan(found: Plan, path: Path, data: Path, as_json: bool) -> None:
    write_text(path, as_toml(found.recipe))
    command = f"bertworks pretrain {path} --data {data} --out run"
    if as_json:
        told = dataclasses.asdict(found)
        print(json.dumps(told | {"written": str(path), "command": command}, ensure_ascii=False))
        return
    console = Console(highlight=False)
    _show_candidates(console, found)
    text, loss = found.text, found.loss
    console.print(
        f"\nforecast: {found.steps:,} steps, {found.pieces:,.0f} pieces ({found.epochs:.1f} epochs), "
        f"{found.memory / 2**30:.2f} GiB, loss {loss.middle:.2f} ({_band(loss)})"
    )
    console.print(
        f"to compare: a loss of {text.ln_v:.2f} is guessing, {text.unigram_entropy:.2f} is knowing only how frequent "
        f"pieces are"
    )
    for reason in found.reasons:
        console.print(Text(f"- {reason}"))
    console.print(Text(f"\n{as_toml(found.recipe)}"))
    console.print(Text(f"written to {path}; start it with:\n{command}"))


def _show_candidates(console: Console, found: Plan) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("size")
    for name in ("batch", "s/step", "steps", "pieces", "epochs", "GiB", "loss"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for one in found.candidates:
        is_chosen = one.size == found.recipe.model.size
        table.add_row(
            one.size,
            f"{one.batch}",
            f"{one.step_seconds:.3f}",
            f"{one.steps:,}",
            f"{one.pieces / 1e6:,.1f}M",
            f"{one.epochs:.1f}",
            f"{one.memory / 2**30:.2f}",
            f"{one.loss.middle:.2f} ({_band(one.loss)})",
            "←" if is_chosen else "",
            style="bold" if is_chosen else "",
        )
    console.print(table)
    for reason in dict.fromkeys(one.reason for one in found.candidates if one.reason):
        sizes = ", ".join(one.size for one in found.candidates if one.reason == reason)
        console.print(Text(f"{sizes}: {reason}"))


def _band(loss: LossBand) -> str:
    return f"{loss.low:.2f} to {loss.high:.2f}"


def _time(days: float) -> str:
    if days >= 1:
        return f"{days:,.1f} days"
    return f"{24 * days:.1f} hours" if 24 * days >= 1 else f"{1440 * days:.1f} minutes"


def _show_estimate(found: Estimate, as_json: bool) -> None:
    if as_json:
        print(json.dumps(dataclasses.asdict(found) | {"formulas": FORMULAS}, ensure_ascii=False))
        return
    console = Console(highlight=False)
    for phase in found.phases:
        console.print(
            f"length {phase.length}: {phase.steps:,} steps of {found.recipe.batch} examples, {phase.flops:.2e} "
            f"operations; a step takes {phase.step_seconds:.2f} s here ({phase.rows} rows were tried)"
        )
    console.print(
        f"in all: {found.steps:,} steps, {found.pieces:,.0f} pieces, {found.flops:.2e} operations; "
        f"{found.parameters:,} parameters with a vocabulary of {found.vocabulary:,}"
    )
    if found.epochs is not None and found.loss is not None:
        console.print(f"on this corpus: {found.epochs:,.1f} epochs, loss {found.loss.middle:.2f} ({_band(found.loss)})")
    table = Table(box=None)
    for name, justify in (("where", "left"), ("time", "right"), ("micro-batch", "right"), ("how", "left")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    how = f"measured; {found.memory / 2**30:.2f} GiB; one large product: {found.product_rate / 1e9:,.0f} GFLOPS"
    table.add_row("here", _time(found.days), f"{found.micro_batch}", Text(how))
    for one in found.hardware:
        fits = {None: "?", 0: "none fits"}.get(one.micro_batch, f"{one.micro_batch}")
        how = f"{one.peak / 1e12:g} TFLOPS a device, {one.utilisation:.0%} of it ({one.source})"
        table.add_row(one.name, _time(one.days), fits, Text(how))
    console.print(table)
    if found.published:
        console.print(found.published)
