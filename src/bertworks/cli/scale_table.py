"""What a run takes on several clusters, side by side: scales in, a table that can be copied into a page out."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence

from bertworks.commands.plan.scale import FORMULAS, ClusterEstimate, ClusterPhaseCost


def show_scales(scales: Sequence[ClusterEstimate], as_json: bool) -> None:
    """Print a column for each cluster, and the formulas behind the rows."""
    if as_json:
        told = [dataclasses.asdict(one) for one in scales]
        print(json.dumps({"scales": told, "formulas": FORMULAS}, ensure_ascii=False))
        return
    rows = [[name, *map(show, scales)] for name, show in _ROWS.items()]
    for place, phase in enumerate(scales[0].phases):
        rows += [
            [f"{name}, length {phase.max_length}", *(show(one.phases[place]) for one in scales)]
            for name, show in _PHASE_ROWS.items()
        ]
    head = ["", *(one.cluster for one in scales)]
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    for row in (head, ["-" * width for width in widths], *rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print(f"| {' | '.join(cells)} |")
    print()
    for name, formula in FORMULAS.items():
        print(f"- {name} = {formula}")


def _bytes(count: float) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e8 else f"{count / 1e6:,.2f} MB"


_ROWS: dict[str, Callable[[ClusterEstimate], str]] = {
    "cards": lambda one: f"{one.num_gpus}",
    "parameters": lambda one: f"{one.parameters:,}",
    "batch (of a card, at once)": lambda one: f"{one.batch_size:,} ({one.sequences_per_gpu}, {one.micro_batch_size})",
    "steps": lambda one: f"{one.steps:,}",
    "pieces": lambda one: f"{one.num_tokens / 1e9:,.1f} G",
    "hours": lambda one: f"{one.hours:,.1f}",
    "memory of a card": lambda one: f"{one.memory / 2**30:.1f} GiB",
    "checkpoint": lambda one: _bytes(one.checkpoint_bytes),
    "stop for a checkpoint, writing": lambda one: (
        f"{one.checkpoint_stall_seconds:.3f} s, {one.checkpoint_write_seconds:.1f} s"
    ),
    "interval": lambda one: f"{one.checkpoint_interval_seconds:,.0f} s",
    "save_every": lambda one: f"{one.save_steps:,}",
    "saving, of all time": lambda one: f"{one.checkpoint_overhead_ratio:.2%}",
}
_PHASE_ROWS: dict[str, Callable[[ClusterPhaseCost], str]] = {
    "steps": lambda one: f"{one.steps:,}",
    "pieces of a step": lambda one: f"{one.num_tokens:,}",
    "operations of a step": lambda one: f"{one.flops:.2e}",
    "computing": lambda one: f"{1e3 * one.compute_seconds:.1f} ms",
    "bytes sent by a card": lambda one: _bytes(one.bytes_sent),
    "network": lambda one: f"{1e3 * one.network_seconds:.1f} ms",
    "seconds of a step": lambda one: f"{1e3 * one.step_seconds:.1f} ms",
    "reading": lambda one: f"{_bytes(one.read_bandwidth)}/s (at worst {_bytes(one.max_read_bandwidth)}/s)",
}
