"""What a run takes on several clusters, side by side: scales in, a table that can be copied into a page out."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence

from bertworks.commands.plan.scale import FORMULAS, PhaseScale, Scale


def show_scales(scales: Sequence[Scale], as_json: bool) -> None:
    """Print a column for each cluster, and the formulas behind the rows."""
    if as_json:
        told = [dataclasses.asdict(one) for one in scales]
        print(json.dumps({"scales": told, "formulas": FORMULAS}, ensure_ascii=False))
        return
    rows = [[name, *map(show, scales)] for name, show in _ROWS.items()]
    for place, phase in enumerate(scales[0].phases):
        rows += [
            [f"{name}, length {phase.length}", *(show(one.phases[place]) for one in scales)]
            for name, show in _PHASE_ROWS.items()
        ]
    head = ["", *(one.cards for one in scales)]
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    for row in (head, ["-" * width for width in widths], *rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print(f"| {' | '.join(cells)} |")
    print()
    for name, formula in FORMULAS.items():
        print(f"- {name} = {formula}")


def _bytes(count: float) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e8 else f"{count / 1e6:,.2f} MB"


_ROWS: dict[str, Callable[[Scale], str]] = {
    "cards": lambda one: f"{one.num_cards}",
    "parameters": lambda one: f"{one.parameters:,}",
    "batch (of a card, at once)": lambda one: f"{one.batch:,} ({one.rows}, {one.micro_batch})",
    "steps": lambda one: f"{one.steps:,}",
    "pieces": lambda one: f"{one.pieces / 1e9:,.1f} G",
    "hours": lambda one: f"{one.hours:,.1f}",
    "memory of a card": lambda one: f"{one.memory / 2**30:.1f} GiB",
    "checkpoint": lambda one: _bytes(one.checkpoint),
    "stop for a checkpoint, writing": lambda one: f"{one.stop:.3f} s, {one.writing:.1f} s",
    "interval": lambda one: f"{one.interval:,.0f} s",
    "save_every": lambda one: f"{one.save_every:,}",
    "saving, of all time": lambda one: f"{one.saving_rate:.2%}",
}
_PHASE_ROWS: dict[str, Callable[[PhaseScale], str]] = {
    "steps": lambda one: f"{one.steps:,}",
    "pieces of a step": lambda one: f"{one.pieces:,}",
    "operations of a step": lambda one: f"{one.flops:.2e}",
    "computing": lambda one: f"{1e3 * one.computing:.1f} ms",
    "bytes sent by a card": lambda one: _bytes(one.sent),
    "network": lambda one: f"{1e3 * one.network:.1f} ms",
    "seconds of a step": lambda one: f"{1e3 * one.seconds:.1f} ms",
    "reading": lambda one: f"{_bytes(one.read)}/s (at worst {_bytes(one.read_pages)}/s)",
}
