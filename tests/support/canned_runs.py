"""Training runs of a server without run folders: how far a run is in, its records, samples and time left out."""

from __future__ import annotations

import math
from typing import Any

STEPS = 2_000
SAMPLES = [
    ("He sat by the [MASK] all morning.", [("river", 0.31), ("window", 0.22), ("##side", 0.05), ("fire", 0.04)]),
    ("The function returns the [MASK] of the list.", [("length", 0.48), ("end", 0.2), ("first", 0.06), ("sum", 0.03)]),
]


def summary(name: str, kind: str, state: str, step: int) -> dict[str, Any]:
    return {"name": name, "kind": kind, "state": state, "step": step, "started": None, "finished": None}


def told(run: dict[str, Any], after: int) -> dict[str, Any]:
    """Return the run with its records after a step; a running one takes half a second a step."""
    records = _tuned(run["step"]) if run["kind"] == "finetune" else _pretrained(run["name"], run["step"])
    left = (STEPS - run["step"]) * 0.5 if run["state"] == "running" else None
    samples = [
        {"kind": "sample", "step": run["step"], "text": text, "filled": [[list(one) for one in blank]]}
        for text, blank in SAMPLES
        if run["kind"] == "pretrain"
    ]
    shown = [record for record in records if record["step"] > after]
    return {**run, "recipe": {}, "records": shown, "samples": samples, "left_seconds": left}


def _pretrained(name: str, last: int) -> list[dict[str, Any]]:
    pace = 350 if name == "mini" else 220
    records: list[dict[str, Any]] = []
    for step in range(0, last + 1, 10):
        loss = 2.3 + 6.4 * math.exp(-step / pace) + 0.12 * math.sin(step * 1.3)
        row = {"step": step, "phase": "128", "losses": {"masked": loss, "pair": 0.5}, "seconds": 0.5 * step}
        rate = 1e-3 * min(step / 200, (STEPS - step) / (STEPS - 200))
        records.append({"kind": "step", **row, "rate": rate, "pieces": 4_096 * step, "grad_norm": 1.0})
        if step % 200 == 0:
            accuracy = 0.04 + 0.42 * (1 - math.exp(-step / pace))
            losses = {"masked": loss + 0.1, "pair": 0.5}
            held = {"step": step, "phase": "128", "losses": losses, "perplexity": math.exp(loss)}
            records.append({"kind": "held_out", **held, "accuracy": accuracy, "pair_accuracy": 0.5 + accuracy / 2})
    # A loss that is not finite, as the record writes it: a chart leaves it out.
    lost = next(record for record in records if record["step"] == 10)
    lost["losses"]["masked"] = "nan"
    return records


def _tuned(last: int) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for step in range(0, last + 1, 5):
        loss = 0.1 + 0.6 * math.exp(-step / 80)
        row = {"step": step, "phase": "finetune", "losses": {"classify": loss}, "rate": 2e-5 * (1 - step / 400)}
        records.append({"kind": "step", **row, "seconds": 1.5 * step, "pieces": 900 * step, "grad_norm": 1.0})
        if step and step % 100 == 0:
            learnt = 0.2 * (1 - math.exp(-step / 150))
            figures = {"accuracy": 0.7 + learnt, "macro_f1": 0.68 + learnt}
            records.append({"kind": "score", "step": step, "split": "dev", "figures": figures})
    return records
