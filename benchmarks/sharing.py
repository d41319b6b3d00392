"""What sharing layers saves: ALBERT and BERT of one shape in, parameters, moments and peak memory of pretraining out.

    python benchmarks/sharing.py [--size base] [--rows 4] [--json]

Both have the same layers, width, heads, activation (gelu), vocabulary (30,522) and batch (rows of 128, 15 % hidden,
dropout 0.1); each does three steps of the loop in a process of its own. `grown` is by how much the peak resident size
of that process grew from before the model was built; `estimate` is what `training.memory` says of such a step.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bertworks.encoders.families import family_of
from bertworks.objectives.registry import OBJECTIVES
from bertworks.training.loop import Training, TrainState, train
from bertworks.training.memory import num_parameters, step_bytes
from bertworks.training.optimizer import AdamSettings, BertAdam
from bertworks.training.schedule import StepSchedule
from pretraining import LENGTH, VOCABULARY, batches_of

MEMBERS = {"bert": "masked-next", "albert": "masked-order"}
_STEPS = 3


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measured(family: str, size: str, rows: int) -> dict[str, Any]:
    """Return the figures of one member, in this process."""
    batch = batches_of(rows, 1)[0]
    sizes = replace(family_of(family).config_from_preset(size, VOCABULARY), hidden_act="gelu")
    before = peak_bytes()
    generator = torch.Generator().manual_seed(0)
    module = OBJECTIVES[MEMBERS[family]](family_of(family).build(sizes, generator), generator)
    optimizer = BertAdam(module, AdamSettings())
    pace = StepSchedule((_STEPS + 1,), 1, 1e-4)
    steps = train(
        Training(
            module=module, trainable=module, optimizer=optimizer, schedule=pace, get_batches=lambda *_: [batch], seed=0
        ),
        TrainState(),
    )
    for _ in range(_STEPS):
        next(steps)
    moments = sum(one.numel() * one.element_size() for one in optimizer.state().values())
    return {
        "member": family,
        "size": size,
        "rows": rows,
        "parameters": num_parameters(sizes),
        "of_layers": sum(one.numel() for one in module.encoder.layers.parameters()),
        "moments_bytes": moments,
        "grown_bytes": peak_bytes() - before,
        "estimate_bytes": step_bytes(sizes, rows, LENGTH),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", default="base")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=list(MEMBERS), help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.only:
        print(json.dumps(measured(told.only, told.size, told.rows)))
        return
    found = []
    for family in MEMBERS:
        command = [sys.executable, str(Path(__file__)), "--only", family, "--size", told.size, "--rows", str(told.rows)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    if told.json:
        print(json.dumps(found))
        return
    print(f"{'':8}{'parameters':>14}{'of layers':>14}{'moments MB':>12}{'peak MB':>10}{'estimate MB':>13}")
    for one in found:
        sizes = [one[f"{name}_bytes"] / 2**20 for name in ("moments", "grown", "estimate")]
        counts = f"{one['member']:8}{one['parameters']:>14,}{one['of_layers']:>14,}"
        print(f"{counts}{sizes[0]:>12,.0f}{sizes[1]:>10,.0f}{sizes[2]:>13,.0f}")


if __name__ == "__main__":
    main()
