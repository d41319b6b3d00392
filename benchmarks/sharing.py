"""Memory saved by sharing layers: ALBERT and BERT of one shape in; parameters, moments and peak memory out.

    python benchmarks/sharing.py [--size base] [--batch-size 4] [--json]

Both have the same layers, hidden size, heads, activation (gelu), vocabulary size (30,522) and batch (sequences of 128,
15 % masked, dropout 0.1); each does three training steps in its own process. `grown` is the growth of the peak resident
size of that process from before the model was built; `estimate` is that of `training.memory`.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from pathlib import Path
from typing import Any

import torch

from bertworks.encoders.families import family_of
from bertworks.objectives.registry import OBJECTIVES
from bertworks.training.loop import Training, TrainState, train
from bertworks.training.memory import num_parameters, step_bytes
from bertworks.training.optimizer import AdamSettings, BertAdam
from bertworks.training.schedule import StepSchedule
from children import run_child
from pretraining_steps import LENGTH, VOCAB_SIZE, make_batches

OBJECTIVE_NAMES = {"bert": "mlm-nsp", "albert": "mlm-sop"}
NUM_STEPS = 3


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(family: str, size: str, batch_size: int) -> dict[str, Any]:
    """Return the results of one family, in this process."""
    batch = make_batches(batch_size, 1)[0]
    config = family_of(family).config_from_preset(size, VOCAB_SIZE).resized(hidden_act="gelu")
    before = peak_bytes()
    generator = torch.Generator().manual_seed(0)
    module = OBJECTIVES[OBJECTIVE_NAMES[family]].build(family_of(family).build(config, generator), generator)
    optimizer = BertAdam(module, AdamSettings())
    schedule = StepSchedule((NUM_STEPS + 1,), 1, 1e-4)
    steps = train(
        Training(
            module=module,
            trainable=module,
            optimizer=optimizer,
            schedule=schedule,
            get_batches=lambda *_: [batch],
            seed=0,
        ),
        TrainState(),
    )
    for _ in range(NUM_STEPS):
        next(steps)
    moments = sum(tensor.numel() * tensor.element_size() for tensor in optimizer.state().values())
    return {
        "member": family,
        "size": size,
        "rows": batch_size,
        "parameters": num_parameters(config),
        "of_layers": sum(parameter.numel() for parameter in module.encoder.layers.parameters()),
        "moments_bytes": moments,
        "grown_bytes": peak_bytes() - before,
        "estimate_bytes": step_bytes(config, batch_size, LENGTH),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", default="base")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=list(OBJECTIVE_NAMES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(options.only, options.size, options.batch_size)))
        return
    results = []
    for family in OBJECTIVE_NAMES:
        command = [sys.executable, str(Path(__file__)), "--only", family, "--size", options.size]
        command += ["--batch-size", str(options.batch_size)]
        results.append(json.loads(run_child(family, command).splitlines()[-1]))
    if options.json:
        print(json.dumps(results))
        return
    print(f"{'':8}{'parameters':>14}{'of layers':>14}{'moments MB':>12}{'peak MB':>10}{'estimate MB':>13}")
    for result in results:
        megabytes = [result[f"{name}_bytes"] / 2**20 for name in ("moments", "grown", "estimate")]
        counts = f"{result['member']:8}{result['parameters']:>14,}{result['of_layers']:>14,}"
        print(f"{counts}{megabytes[0]:>12,.0f}{megabytes[1]:>10,.0f}{megabytes[2]:>13,.0f}")


if __name__ == "__main__":
    main()
