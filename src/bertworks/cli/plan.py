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
from bertworks.commands.plan.benchmark import DeviceBenchmark
from bertworks.commands.plan.estimate import FORMULAS, PAPER_VOCAB_SIZE, Estimate, EstimateRequest, estimate
from bertworks.commands.plan.forecast import LossBand
from bertworks.commands.plan.hardware import Hardware, hardware_from_flops, parse_hardware
from bertworks.commands.plan.run import Plan, PlanRequest, plan
from bertworks.commands.plan.scale import Cluster, estimate_on_cluster
from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.corpus.corpus import Corpus
from bertworks.disk import write_text
from bertworks.errors import SettingsError
from bertworks.parallel.machine import available_bytes
from bertworks.settings import read_recipe, recipe_path, to_toml
from bertworks.training.devices import DEVICES, device_of

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_DEFAULT_OUTPUT = Path("plan.toml")


@app.command("plan")
def plan_verb(
    data: Annotated[Path | None, typer.Option(help="The corpus folder that `bertworks prepare` made.")] = None,
    budget: Annotated[str, typer.Option(help="Recommend a recipe for so much time, such as 2h.")] = "",
    recipe: Annotated[str, typer.Option(help="Instead tell what this recipe takes, such as paper-base.")] = "",
    output: Annotated[Path | None, typer.Option(help="Where the recipe goes; plan.toml by default.")] = None,
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
        if budget or output is not None or hardware or flops is not None:
            raise SettingsError(
                "--nodes goes with --recipe, --data, --gpus, --gpu, --network and --shard, and no others"
            )
        clusters = [Cluster(count, gpus, parse_hardware(gpu), network * 1e9 / 8) for count in nodes]
        vocabulary = PAPER_VOCAB_SIZE if data is None else Corpus.open(data, vocab).tokenizer.vocab_size
        read = read_recipe(recipe_path(recipe or "paper-base"), PretrainRecipe)
        show_scales([estimate_on_cluster(read, vocabulary, one, shard) for one in clusters], as_json)
        return
    chosen = device_of(device)
    if budget and not recipe:
        if data is None:
            raise SettingsError("a plan needs a corpus; name the folder that `bertworks prepare` made with --data")
        if hardware or flops is not None:
            raise SettingsError("--hardware and --flops go with --recipe: a plan for a budget is measured here")
        path = _check_writable(output or _DEFAULT_OUTPUT, force)
        request = PlanRequest(data, budget, vocab, available_bytes(chosen))
        _show_plan(plan(request, DeviceBenchmark(chosen), _print_status), path, data, as_json)
    elif recipe and not budget:
        if output is not None:
            raise SettingsError("--out goes with --budget: with --recipe nothing is written")
        asked = _parse_hardware(hardware or [], flops, devices, utilisation)
        read = read_recipe(recipe_path(recipe), PretrainRecipe)
        found = estimate(
            EstimateRequest(read, data, vocab, asked, available_bytes(chosen)), DeviceBenchmark(chosen), _print_status
        )
        _show_estimate(found, as_json)
    else:
        raise SettingsError("give --budget, such as 2h, for a recommendation, or --recipe for what one takes; not both")


def _print_status(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _check_writable(path: Path, force: bool) -> Path:
    """Return the path if it may be written; asked before a minute is spent on measuring."""
    if path.is_dir():
        raise SettingsError(f"{path} is a folder; name a file with --out, such as {path / _DEFAULT_OUTPUT}")
    if path.exists() and not force:
        raise SettingsError(f"{path} exists; choose another file with --out, or replace it with --force")
    return path


def _parse_hardware(names: list[str], flops: float | None, devices: int, utilisation: float) -> tuple[Hardware, ...]:
    found = [parse_hardware(name) for name in names]
    if flops is not None:
        found.append(hardware_from_flops(flops, devices, utilisation))
    return tuple(found)


def _show_plan(result: Plan, path: Path, data: Path, as_json: bool) -> None:
    write_text(path, to_toml(result.recipe))
    command = f"bertworks pretrain {path} --data {data} --out run"
    if as_json:
        told = dataclasses.asdict(result)
        print(json.dumps(told | {"written": str(path), "command": command}, ensure_ascii=False))
        return
    console = Console(highlight=False)
    _show_candidates(console, result)
    text, loss = result.corpus_summary, result.loss
    console.print(
        f"\nforecast: {result.steps:,} steps, {result.num_tokens:,.0f} pieces ({result.epochs:.1f} epochs), "
        f"{result.memory / 2**30:.2f} GiB, loss {loss.middle:.2f} ({_format_interval(loss)})"
    )
    console.print(
        f"to compare: a loss of {text.ln_v:.2f} is guessing, {text.unigram_entropy:.2f} is knowing only how frequent "
        f"pieces are"
    )
    for reason in result.reasons:
        console.print(Text(f"- {reason}"))
    console.print(Text(f"\n{to_toml(result.recipe)}"))
    console.print(Text(f"written to {path}; start it with:\n{command}"))


def _show_candidates(console: Console, result: Plan) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("size")
    for name in ("batch", "s/step", "steps", "pieces", "epochs", "GiB", "loss"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for one in result.candidates:
        is_chosen = one.size == result.recipe.model.size
        table.add_row(
            one.size,
            f"{one.batch_size}",
            f"{one.step_seconds:.3f}",
            f"{one.steps:,}",
            f"{one.num_tokens / 1e6:,.1f}M",
            f"{one.epochs:.1f}",
            f"{one.memory / 2**30:.2f}",
            f"{one.loss.middle:.2f} ({_format_interval(one.loss)})",
            "←" if is_chosen else "",
            style="bold" if is_chosen else "",
        )
    console.print(table)
    for reason in dict.fromkeys(one.reason for one in result.candidates if one.reason):
        sizes = ", ".join(one.size for one in result.candidates if one.reason == reason)
        console.print(Text(f"{sizes}: {reason}"))


def _format_interval(loss: LossBand) -> str:
    return f"{loss.low:.2f} to {loss.high:.2f}"


def _format_days(days: float) -> str:
    if days >= 1:
        return f"{days:,.1f} days"
    return f"{24 * days:.1f} hours" if 24 * days >= 1 else f"{1440 * days:.1f} minutes"


def _show_estimate(result: Estimate, as_json: bool) -> None:
    if as_json:
        print(json.dumps(dataclasses.asdict(result) | {"formulas": FORMULAS}, ensure_ascii=False))
        return
    console = Console(highlight=False)
    for phase in result.phases:
        console.print(
            f"length {phase.max_length}: {phase.steps:,} steps of {result.recipe.batch_size} examples, {phase.flops:.2e} "
            f"operations; a step takes {phase.step_seconds:.2f} s here ({phase.num_sequences} rows were tried)"
        )
    console.print(
        f"in all: {result.steps:,} steps, {result.num_tokens:,.0f} pieces, {result.flops:.2e} operations; "
        f"{result.parameters:,} parameters with a vocabulary of {result.vocab_size:,}"
    )
    if result.epochs is not None and result.loss is not None:
        console.print(
            f"on this corpus: {result.epochs:,.1f} epochs, loss {result.loss.middle:.2f} ({_format_interval(result.loss)})"
        )
    table = Table(box=None)
    for name, justify in (("where", "left"), ("time", "right"), ("micro-batch", "right"), ("how", "left")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    how = f"measured; {result.memory / 2**30:.2f} GiB; one large product: {result.matmul_throughput / 1e9:,.0f} GFLOPS"
    table.add_row("here", _format_days(result.days), f"{result.micro_batch_size}", Text(how))
    for one in result.hardware:
        fits = {None: "?", 0: "none fits"}.get(one.micro_batch_size, f"{one.micro_batch_size}")
        how = f"{one.peak_flops / 1e12:g} TFLOPS a device, {one.utilisation:.0%} of it ({one.source})"
        table.add_row(one.name, _format_days(one.days), fits, Text(how))
    console.print(table)
    if result.paper_reference:
        console.print(result.paper_reference)
