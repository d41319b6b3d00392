"""The cost of a run on several clusters side by side: cluster estimates in, a Markdown table out."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence

from bertworks.commands.plan.scale import FORMULAS, ClusterEstimate, ClusterPhaseCost


def show_clusters(estimates: Sequence[ClusterEstimate], as_json: bool) -> None:
    """Print a column per cluster, and the formulas behind the rows."""
    if as_json:
        clusters = [dataclasses.asdict(estimate) for estimate in estimates]
        print(json.dumps({"clusters": clusters, "formulas": FORMULAS}, ensure_ascii=False))
        return
    rows = [[name, *map(show, estimates)] for name, show in _ROWS.items()]
    for index, phase in enumerate(estimates[0].phases):
        rows += [
            [f"{name}, length {phase.name}", *(show(estimate.phases[index]) for estimate in estimates)]
            for name, show in _PHASE_ROWS.items()
        ]
    head = ["", *(estimate.cluster for estimate in estimates)]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, ["-" * width for width in widths], *rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print(f"| {' | '.join(cells)} |")
    print()
    for name, formula in FORMULAS.items():
        print(f"- {name} = {formula}")


def _bytes(count: float) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e8 else f"{count / 1e6:,.2f} MB"


_ROWS: dict[str, Callable[[ClusterEstimate], str]] = {
    "GPUs": lambda run: f"{run.num_gpus}",
    "parameters": lambda run: f"{run.num_parameters:,}",
    "batch size (per GPU, micro-batch)": lambda run: (
        f"{run.batch_size:,} ({run.sequences_per_gpu}, {run.micro_batch_size})"
    ),
    "steps": lambda run: f"{run.steps:,}",
    "tokens": lambda run: f"{run.num_tokens / 1e9:,.1f} G",
    "hours": lambda run: f"{run.hours:,.1f}",
    "memory per GPU": lambda run: f"{run.memory / 2**30:.1f} GiB",
    "checkpoint size": lambda run: _bytes(run.checkpoint_bytes),
    "checkpoint stall, write": lambda run: (
        f"{run.checkpoint_stall_seconds:.3f} s, {run.checkpoint_write_seconds:.1f} s"
    ),
    "checkpoint interval": lambda run: f"{run.checkpoint_interval_seconds:,.0f} s",
    "save_steps": lambda run: f"{run.save_steps:,}",
    "checkpoint overhead": lambda run: f"{run.checkpoint_overhead_ratio:.2%}",
}
_PHASE_ROWS: dict[str, Callable[[ClusterPhaseCost], str]] = {
    "steps": lambda phase: f"{phase.steps:,}",
    "tokens per step": lambda phase: f"{phase.num_tokens:,}",
    "FLOPs per step": lambda phase: f"{phase.flops:.2e}",
    "compute time": lambda phase: f"{1e3 * phase.compute_seconds:.1f} ms",
    "bytes sent per GPU": lambda phase: _bytes(phase.bytes_sent),
    "network time": lambda phase: f"{1e3 * phase.network_seconds:.1f} ms",
    "step time": lambda phase: f"{1e3 * phase.step_seconds:.1f} ms",
    "read bandwidth": lambda phase: f"{_bytes(phase.read_bandwidth)}/s (at most {_bytes(phase.max_read_bandwidth)}/s)",
}
