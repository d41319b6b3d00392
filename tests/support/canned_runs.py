"""Canned training runs for tests of the page: the step of a run in, its records, samples and time left out."""

from __future__ import annotations

import math
from typing import Any

NUM_STEPS = 2_000
SAMPLES = [
    ("He sat by the [MASK] all morning.", [("river", 0.31), ("window", 0.22), ("##side", 0.05), ("fire", 0.04)]),
    ("The function returns the [MASK] of the list.", [("length", 0.48), ("end", 0.2), ("first", 0.06), ("sum", 0.03)]),
]


def summary(name: str, kind: str, state: str, step: int) -> dict[str, Any]:
    return {"name": name, "kind": kind, "state": state, "step": step, "started": None, "finished": None}


def run_response(run: dict[str, Any], after: int) -> dict[str, Any]:
    """Return the run with its records after a step; a running one takes half a second per step."""
    is_finetuning = run["kind"] == "finetune"
    records = _finetune_records(run["step"]) if is_finetuning else _pretrain_records(run["name"], run["step"])
    seconds_left = (NUM_STEPS - run["step"]) * 0.5 if run["state"] == "running" else None
    samples = [
        {"kind": "sample", "step": run["step"], "text": text, "predictions": [[list(pair) for pair in candidates]]}
        for text, candidates in SAMPLES
        if not is_finetuning
    ]
    new_records = [record for record in records if record["step"] > after]
    return {**run, "recipe": {}, "records": new_records, "samples": samples, "seconds_left": seconds_left}


def _pretrain_records(name: str, last_step: int) -> list[dict[str, Any]]:
    decay = 350 if name == "mini" else 220
    records: list[dict[str, Any]] = []
    for step in range(0, last_step + 1, 10):
        loss = 2.3 + 6.4 * math.exp(-step / decay) + 0.12 * math.sin(step * 1.3)
        learning_rate = 1e-3 * min(step / 200, (NUM_STEPS - step) / (NUM_STEPS - 200))
        records.append(
            {
                **{"kind": "step", "step": step, "phase": "128", "losses": {"mlm": loss, "nsp": 0.5}},
                **{"learning_rate": learning_rate, "seconds": 0.5 * step, "num_tokens": 4_096 * step, "grad_norm": 1.0},
            }
        )
        if step % 200 == 0:
            accuracy = 0.04 + 0.42 * (1 - math.exp(-step / decay))
            records.append(
                {
                    **{"kind": "held_out", "step": step, "phase": "128", "losses": {"mlm": loss + 0.1, "nsp": 0.5}},
                    **{"perplexity": math.exp(loss), "accuracy": accuracy, "pair_accuracy": 0.5 + accuracy / 2},
                }
            )
    # A non-finite loss as the records write it: a chart leaves it out.
    record = next(record for record in records if record["step"] == 10)
    record["losses"]["mlm"] = "nan"
    return records


def _finetune_records(last_step: int) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for step in range(0, last_step + 1, 5):
        loss, learning_rate = 0.1 + 0.6 * math.exp(-step / 80), 2e-5 * (1 - step / 400)
        records.append(
            {
                **{"kind": "step", "step": step, "phase": "finetune", "losses": {"classify": loss}},
                **{"learning_rate": learning_rate, "seconds": 1.5 * step, "num_tokens": 900 * step, "grad_norm": 1.0},
            }
        )
        if step and step % 100 == 0:
            gain = 0.2 * (1 - math.exp(-step / 150))
            metrics = {"accuracy": 0.7 + gain, "macro_f1": 0.68 + gain, "calibration_error": 0.1, "loss": 0.6 - gain}
            records.append({"kind": "score", "step": step, "split": "dev", "metrics": metrics})
    return records
