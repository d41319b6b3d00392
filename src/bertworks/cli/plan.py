"""`bertworks plan`: a corpus and a time budget in, a recipe out; or a recipe in, its cost here and elsewhere out."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertworks.cli.command import Command, command_app
from bertworks.cli.completion import complete_recipe
from bertworks.cli.options import AsJson, Device, Vocabulary
from bertworks.cli.progress import show_progress
from bertworks.errors import SettingsError
from bertworks.messages import localize
from bertworks.progress import begin_stage
from bertworks.settings import recipe_path

if TYPE_CHECKING:
    from rich.console import Console

    from bertworks.commands.plan.estimate import Estimate
    from bertworks.commands.plan.forecast import LossBand
    from bertworks.commands.plan.hardware import Hardware
    from bertworks.commands.plan.run import Plan

app = command_app()

_DEFAULT_OUTPUT = Path("plan.toml")


@app.command("plan", cls=Command)
def plan_command(
    data: Annotated[Path | None, typer.Option(help="A corpus folder written by `bertworks prepare`.")] = None,
    budget: Annotated[
        str, typer.Option(help="Recommend a recipe for this much time, such as 2h.", metavar="TIME")
    ] = "",
    recipe: Annotated[
        str,
        typer.Option(
            help="Estimate the cost of this recipe instead, such as paper-base.", autocompletion=complete_recipe
        ),
    ] = "",
    output: Annotated[Path | None, typer.Option(help="Recipe file to write; plan.toml by default.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    vocab: Vocabulary = None,
    hardware: Annotated[
        list[str] | None, typer.Option(help="With --recipe: days on this hardware, such as 8xA100; may be repeated.")
    ] = None,
    flops: Annotated[float | None, typer.Option(help="The same by the peak FLOPS of a device, such as 312e12.")] = None,
    devices: Annotated[int, typer.Option(min=1, help="Number of such devices.")] = 1,
    utilisation: Annotated[float, typer.Option(help="Fraction of the peak that is reached (MFU).")] = 0.25,
    nodes: Annotated[list[int] | None, typer.Option(help="The recipe on this many nodes; may be repeated.")] = None,
    gpus: Annotated[int, typer.Option(help="GPUs per node.")] = 8,
    gpu: Annotated[str, typer.Option(help="Kind of GPU: V100, A100, H100, …")] = "A100",
    network: Annotated[float, typer.Option(help="Network bandwidth of a node in Gbit/s.")] = 100.0,
    shard: Annotated[bool, typer.Option("--shard", help="Shard the model over all GPUs (FSDP2).")] = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Benchmark this machine for a minute, then recommend a recipe for a corpus and a time budget.

    With --recipe: estimate how many days that recipe takes here and on other hardware. With --nodes: its cost on many
    nodes, by arithmetic alone.
    """
    _check_options(budget, recipe, nodes)
    recipe_file = recipe_path(recipe or "paper-base")
    from bertworks.commands.plan.benchmark import DeviceBenchmark
    from bertworks.commands.plan.estimate import PAPER_VOCAB_SIZE, EstimateRequest, estimate
    from bertworks.commands.plan.hardware import parse_hardware
    from bertworks.commands.plan.run import PlanRequest, plan
    from bertworks.commands.plan.scale import Cluster, estimate_on_cluster
    from bertworks.commands.pretrain.recipe import PretrainRecipe
    from bertworks.corpus.corpus import Corpus
    from bertworks.parallel.machine import available_bytes
    from bertworks.settings import read_recipe
    from bertworks.training.devices import device_of

    if nodes:
        if budget or output is not None or hardware or flops is not None:
            raise SettingsError("--nodes combines with --recipe, --data, --gpus, --gpu, --network and --shard only")
        from bertworks.cli.cluster_table import show_clusters

        clusters = [Cluster(count, gpus, parse_hardware(gpu), network * 1e9 / 8) for count in nodes]
        vocab_size = PAPER_VOCAB_SIZE if data is None else Corpus.open(data, vocab).tokenizer.vocab_size
        settings = read_recipe(recipe_file, PretrainRecipe)
        estimates = [estimate_on_cluster(settings, vocab_size, cluster, shard) for cluster in clusters]
        show_clusters(estimates, as_json)
        return
    torch_device = device_of(device)
    if budget:
        if data is None:
            raise SettingsError("a plan needs a corpus; name a folder written by `bertworks prepare` with --data")
        if hardware or flops is not None:
            raise SettingsError("--hardware and --flops need --recipe: a plan for a budget is measured here")
        path = _check_writable(output or _DEFAULT_OUTPUT, force)
        plan_request = PlanRequest(
            corpus=data, budget=budget, vocabulary=vocab, memory=available_bytes(torch_device)
        )  # fmt: skip
        with show_progress(log_stages=True) as on_progress:
            result = plan(plan_request, DeviceBenchmark(torch_device), lambda text: on_progress(begin_stage(text)))
        _show_plan(result, path, data, as_json)
        return
    if output is not None:
        raise SettingsError("--output needs --budget: with --recipe nothing is written")
    request = EstimateRequest(
        recipe=read_recipe(recipe_file, PretrainRecipe), corpus=data, vocabulary=vocab,
        hardware=_parse_hardware(hardware or [], flops, devices, utilisation), memory=available_bytes(torch_device),
    )  # fmt: skip
    with show_progress(log_stages=True) as on_progress:
        cost = estimate(request, DeviceBenchmark(torch_device), lambda text: on_progress(begin_stage(text)))
    _show_estimate(cost, as_json)


def _check_options(budget: str, recipe: str, nodes: list[int] | None) -> None:
    if not nodes and bool(budget) == bool(recipe):
        raise SettingsError(
            "give --budget (such as 2h) for a recommended recipe, or --recipe for the cost of one; not both"
        )


def _check_writable(path: Path, force: bool) -> Path:
    """Return the path if it may be written; checked before a minute is spent on the benchmark."""
    if path.is_dir():
        raise SettingsError(f"{path} is a folder; name a file with --output, such as {path / _DEFAULT_OUTPUT}")
    if path.exists() and not force:
        raise SettingsError(f"{path} exists; choose another file with --output, or replace it with --force")
    return path


def _parse_hardware(names: list[str], flops: float | None, devices: int, utilisation: float) -> tuple[Hardware, ...]:
    from bertworks.commands.plan.hardware import hardware_from_flops, parse_hardware

    parsed = [parse_hardware(name) for name in names]
    if flops is not None:
        parsed.append(hardware_from_flops(flops, devices, utilisation))
    return tuple(parsed)


def _show_plan(result: Plan, path: Path, data: Path, as_json: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    from bertworks.disk import write_text
    from bertworks.settings import to_toml

    write_text(path, to_toml(result.recipe))
    command = f"bertworks pretrain {path} --data {data} --output run"
    if as_json:
        values = dataclasses.asdict(result) | {"written": str(path), "command": command}
        print(json.dumps(values, ensure_ascii=False))
        return
    console = Console(highlight=False)
    _show_candidates(console, result)
    summary, loss = result.corpus_summary, result.loss
    console.print(
        localize(
            f"\nforecast: {result.steps:,} steps, {result.num_tokens:,.0f} tokens ({result.epochs:.1f} epochs), "
            f"{result.memory / 2**30:.2f} GiB, loss {loss.middle:.2f} ({_format_interval(loss)})"
        )
    )
    console.print(
        localize(
            f"for comparison: uniform loss {summary.uniform_loss:.2f}, unigram entropy {summary.unigram_entropy:.2f}"
        )
    )
    for reason in result.reasons:
        console.print(Text(f"- {localize(reason)}"))
    console.print(Text(f"\n{to_toml(result.recipe)}"))
    console.print(Text(localize(f"written to {path}; start it with:\n{command}")))


def _show_candidates(console: Console, result: Plan) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(localize("size"))
    for name in ("batch size", "s/step", "steps", "tokens", "epochs", "GiB", "loss"):
        table.add_column(localize(name), justify="right", no_wrap=True)
    table.add_column("")
    for candidate in result.candidates:
        is_chosen = candidate.size == result.recipe.model.size
        table.add_row(
            candidate.size,
            f"{candidate.batch_size}",
            f"{candidate.step_seconds:.3f}",
            f"{candidate.steps:,}",
            f"{candidate.num_tokens / 1e6:,.1f}M",
            f"{candidate.epochs:.1f}",
            f"{candidate.memory / 2**30:.2f}",
            f"{candidate.loss.middle:.2f} ({_format_interval(candidate.loss)})",
            "←" if is_chosen else "",
            style="bold" if is_chosen else "",
        )
    console.print(table)
    for reason in dict.fromkeys(item.reason for item in result.candidates if item.reason):
        sizes = ", ".join(item.size for item in result.candidates if item.reason == reason)
        console.print(Text(f"{sizes}: {reason}"))


def _format_interval(loss: LossBand) -> str:
    return f"{loss.low:.2f} to {loss.high:.2f}"


def _format_days(days: float) -> str:
    if days >= 1:
        return f"{days:,.1f} days"
    return f"{24 * days:.1f} hours" if 24 * days >= 1 else f"{1440 * days:.1f} minutes"


def _show_estimate(result: Estimate, as_json: bool) -> None:
    if as_json:
        from bertworks.commands.plan.estimate import FORMULAS

        print(json.dumps(dataclasses.asdict(result) | {"formulas": FORMULAS}, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    for phase in result.phases:
        console.print(
            localize(
                f"max_length {phase.name}: {phase.steps:,} steps of {phase.batch_size} sequences, "
                f"{phase.flops:.2e} FLOPs; {phase.step_seconds:.2f} s per step here (measured on {phase.num_sequences} "
                f"sequences)"
            )
        )
    console.print(
        localize(
            f"total: {result.steps:,} steps, {result.num_tokens:,.0f} tokens, {result.flops:.2e} FLOPs; "
            f"{result.num_parameters:,} parameters with a vocabulary of {result.vocab_size:,}"
        )
    )
    if result.epochs is not None and result.loss is not None:
        console.print(
            localize(
                f"on this corpus: {result.epochs:,.1f} epochs, loss {result.loss.middle:.2f} "
                f"({_format_interval(result.loss)})"
            )
        )
    table = Table(box=None)
    for name, justify in (("where", "left"), ("time", "right"), ("micro-batch", "right"), ("how", "left")):
        table.add_column(localize(name), justify=justify)  # type: ignore[arg-type]
    how = f"measured; {result.memory / 2**30:.2f} GiB; large matmul: {result.matmul_throughput / 1e9:,.0f} GFLOPS"
    table.add_row("here", _format_days(result.days), f"{result.micro_batch_size}", Text(how))
    for machine in result.hardware:
        fits = {None: "?", 0: "none fits"}.get(machine.micro_batch_size, f"{machine.micro_batch_size}")
        how = (
            f"{machine.peak_flops / 1e12:g} TFLOPS per device, {machine.utilisation:.0%} utilisation ({machine.source})"
        )
        table.add_row(machine.name, _format_days(machine.days), fits, Text(how))
    console.print(table)
    if result.paper_reference:
        console.print(result.paper_reference)
