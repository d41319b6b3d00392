"""What many processes cost: DDP beside threads, checkpoints of a model that is spread over processes, Ray.

    python benchmarks/scale.py [--only ddp,checkpoint,ray] [--sizes mini,small] [--turns 9] [--json]

ratio_ddp            the time of a step of 1 process with two threads to that of 2 processes with one each (DDP), at the
                     same batch of 32 rows of 128; they take turns, medians; the lowest of the sizes
overhead_checkpoint  the time to write a sharded checkpoint (FSDP2, 2 processes), shared out over the steps between two
                     of them at the default interval, to that of a step; the highest of the sizes
ratio_ray            the time to prepare text with 2 processes to that on 2 Ray workers; `scale_ray.py` says what that
                     includes

Every process lives as long as its part of the benchmark, and waits while it is another's turn.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.encoders.bert import Bert
from bertworks.encoders.stack import BertConfig
from bertworks.objectives.mlm import MlmObjective
from bertworks.parallel.process_group import all_gather, process_group, world_size
from bertworks.training.checkpoint import CheckpointProcessGroup, save_checkpoint
from bertworks.training.data_parallel import wrap_ddp
from bertworks.training.devices import Precision
from bertworks.training.loop import Training, TrainState, train
from bertworks.training.optimizer import AdamSettings, BertAdam
from bertworks.training.schedule import StepSchedule
from bertworks.training.sharding import local_state_dict, shard
from pretraining import VOCABULARY, batches_of
from scale_ray import beside_ray

ROWS = 32
NUM_BATCHES = 4


class Engine:
    """Some processes that do a step, or save, when they are told to; how long the slowest of them took comes back."""

    def __init__(self, kind: str, size: str, num_processes: int, num_threads: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        told = {"WORLD_SIZE": num_processes, "LOCAL_WORLD_SIZE": num_processes, "MASTER_PORT": port}
        told |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": num_threads}
        self._folder = tempfile.TemporaryDirectory(prefix="bertworks-scale-")
        self._processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--child", kind, "--sizes", size, "--folder", self._folder.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "RANK": str(rank), **{name: str(value) for name, value in told.items()}},
            )
            for rank in range(num_processes)
        ]
        for _ in range(2):  # the first steps set things up
            self.seconds("step")

    def seconds(self, what: str) -> float:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{what}\n")
            process.stdin.flush()
        return max(float(process.stdout.readline()) for process in self._processes if process.stdout is not None)

    def end(self) -> None:
        for process in self._processes:
            process.communicate()
        self._folder.cleanup()


def child(kind: str, size: str, folder: Path) -> None:
    """Be one process of an engine: read what to do, do it, and print how long it took."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    with process_group():
        generator = torch.Generator().manual_seed(0)
        module = MlmObjective(Bert(BertConfig.from_preset(size, VOCABULARY), generator), generator)
        if kind == "sharded":
            shard(module, module.encoder.layers, Precision())
        rows = batches_of(ROWS // world_size(), NUM_BATCHES)
        optimizer, standing = BertAdam(module, AdamSettings()), TrainState()
        draw = lambda phase, step: [rows[step % NUM_BATCHES]]  # noqa: E731
        trainable = wrap_ddp(module, lambda: rows[0])
        steps = train(
            Training(
                module=module,
                trainable=trainable,
                optimizer=optimizer,
                schedule=StepSchedule((10**6,), 10_000, 1e-4),
                get_batches=draw,
                seed=0,
            ),
            standing,
        )
        crew = CheckpointProcessGroup(int(os.environ["RANK"]), world_size(), all_gather)
        work: dict[str, Callable[[], object]] = {
            "step": lambda: next(steps),
            "save": lambda: save_checkpoint(folder, local_state_dict(module), optimizer.state(), standing, "", crew),
        }
        for line in sys.stdin:
            started = time.perf_counter()
            work[line.strip()]()
            print(time.perf_counter() - started, flush=True)


def ddp(sizes: Sequence[str], num_turns: int) -> dict[str, float]:
    """DDP with 2 processes of one thread beside 1 process of two."""
    found: dict[str, float] = {}
    for size in sizes:
        engines = {"threads": Engine("plain", size, 1, 2), "ddp": Engine("plain", size, 2, 1)}
        times: dict[str, list[float]] = {name: [] for name in engines}
        for _ in range(num_turns):
            for name, engine in engines.items():
                times[name].append(engine.seconds("step"))
        for name, engine in engines.items():
            engine.end()
            found[f"seconds_{name}_{size}"] = statistics.median(times[name])
        found[f"ratio_ddp_{size}"] = found[f"seconds_threads_{size}"] / found[f"seconds_ddp_{size}"]
    return found | {"ratio_ddp": min(found[f"ratio_ddp_{size}"] for size in sizes)}


def checkpoint(sizes: Sequence[str], num_turns: int) -> dict[str, float]:
    """Sharded checkpoints of 2 processes at the default interval."""
    found: dict[str, float] = {}
    interval = PretrainRecipe().save_steps
    for size in sizes:
        engine = Engine("sharded", size, 2, 1)
        steps = [engine.seconds("step") for _ in range(num_turns)]
        saves = [engine.seconds("save") for _ in range(max(3, num_turns // 2))]
        engine.end()
        step, save = statistics.median(steps), statistics.median(saves)
        found |= {f"seconds_sharded_{size}": step, f"seconds_save_{size}": save}
        found[f"overhead_checkpoint_{size}"] = save / (interval * step)
    return found | {"overhead_checkpoint": max(found[f"overhead_checkpoint_{size}"] for size in sizes)}


def ray(sizes: Sequence[str], num_turns: int) -> dict[str, float]:
    """Preparation on 2 Ray workers beside 2 processes; no model is in it, so sizes make no difference."""
    del sizes
    return beside_ray(min(num_turns, 3))


# What is measured; each part returns its figures.
PARTS: dict[str, Callable[[Sequence[str], int], dict[str, float]]] = {"ddp": ddp, "checkpoint": checkpoint, "ray": ray}
# What the figures should be at least, or at most.
BARS = {"ratio_ddp": "at least 0.9", "ratio_ray": "at least 0.85", "overhead_checkpoint": "at most 0.03"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="which parts, with commas between")
    parser.add_argument("--sizes", default="mini,small")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        child(asked.child, asked.sizes, asked.folder)
        return
    found: dict[str, float] = {}
    for name in asked.only.split(","):
        found |= PARTS[name](asked.sizes.split(","), asked.turns)
    if asked.json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        print(f"{key:<32} {value:.5g}" + (f"   ({BARS[key]})" if key in BARS else ""))


if __name__ == "__main__":
    main()
