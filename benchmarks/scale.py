"""Cost of parallel processes: DDP against threads, checkpoints of a sharded model, Ray against local processes.

    python benchmarks/scale.py [--only ddp,checkpoint,ray] [--sizes mini,small] [--turns 9] [--json]

ratio_ddp            the time of a step of 1 process with two threads divided by that of 2 processes with one each
                     (DDP), with the same batch of 32 sequences of 128; alternating, medians; the lowest of the sizes
overhead_checkpoint  the time to write a sharded checkpoint (FSDP2, 2 processes) per step at the default interval,
                     divided by that of a step; the highest of the sizes
ratio_ray            the time to prepare text with 2 processes divided by that on 2 Ray workers; see `scale_ray.py`

Processes live as long as their part of the benchmark, and wait while another is timed.
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
from bertworks.encoders.bert import Bert, BertConfig
from bertworks.objectives.mlm import MlmModule
from bertworks.parallel.process_group import all_gather, process_group, world_size
from bertworks.training.checkpoint import CheckpointProcessGroup, save_checkpoint
from bertworks.training.data_parallel import wrap_ddp
from bertworks.training.devices import Precision
from bertworks.training.loop import Training, TrainState, train
from bertworks.training.optimizer import AdamSettings, BertAdam
from bertworks.training.schedule import StepSchedule
from bertworks.training.sharding import local_state_dict, shard
from pretraining import VOCAB_SIZE, make_batches
from scale_ray import compare_with_ray

BATCH_SIZE = 32
NUM_BATCHES = 4


class ProcessPool:
    """Processes that do a step, or save, on request; the time of the slowest of them is returned."""

    def __init__(self, kind: str, size: str, num_processes: int, num_threads: int) -> None:
        with socket.socket() as free_socket:
            free_socket.bind(("127.0.0.1", 0))
            port = free_socket.getsockname()[1]
        environment = {"WORLD_SIZE": num_processes, "LOCAL_WORLD_SIZE": num_processes, "MASTER_PORT": port}
        environment |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": num_threads}
        self._folder = tempfile.TemporaryDirectory(prefix="bertworks-scale-")
        self._processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--child", kind, "--sizes", size, "--folder", self._folder.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "RANK": str(rank), **{name: str(value) for name, value in environment.items()}},
            )
            for rank in range(num_processes)
        ]
        for _ in range(2):  # warmup
            self.time("step")

    def time(self, action: str) -> float:
        """Return the seconds of a step or of saving."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{action}\n")
            process.stdin.flush()
        return max(float(process.stdout.readline()) for process in self._processes if process.stdout is not None)

    def finish(self) -> None:
        for process in self._processes:
            process.communicate()
        self._folder.cleanup()


def child(kind: str, size: str, folder: Path) -> None:
    """Run one process of a pool: read an action, do it, and print its seconds."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    with process_group():
        generator = torch.Generator().manual_seed(0)
        module = MlmModule(Bert(BertConfig.from_preset(size, VOCAB_SIZE), generator), generator)
        if kind == "sharded":
            shard(module, module.encoder.layers, Precision())
        batches = make_batches(BATCH_SIZE // world_size(), NUM_BATCHES)
        optimizer, train_state = BertAdam(module, AdamSettings()), TrainState()
        trainable = wrap_ddp(module, lambda: batches[0])
        steps = train(
            Training(
                module=module,
                trainable=trainable,
                optimizer=optimizer,
                schedule=StepSchedule((10**6,), 10_000, 1e-4),
                get_batches=lambda phase, step: [batches[step % NUM_BATCHES]],
                seed=0,
            ),
            train_state,
        )
        group = CheckpointProcessGroup(int(os.environ["RANK"]), world_size(), all_gather)
        actions: dict[str, Callable[[], object]] = {
            "step": lambda: next(steps),
            "save": lambda: save_checkpoint(
                folder, local_state_dict(module), optimizer.state(), train_state, "", group
            ),
        }
        for line in sys.stdin:
            started = time.perf_counter()
            actions[line.strip()]()
            print(time.perf_counter() - started, flush=True)


def ddp(sizes: Sequence[str], num_turns: int) -> dict[str, float]:
    """DDP with 2 processes of one thread against 1 process of two."""
    results: dict[str, float] = {}
    for size in sizes:
        pools = {"threads": ProcessPool("plain", size, 1, 2), "ddp": ProcessPool("plain", size, 2, 1)}
        seconds: dict[str, list[float]] = {name: [] for name in pools}
        for _ in range(num_turns):
            for name, pool in pools.items():
                seconds[name].append(pool.time("step"))
        for name, pool in pools.items():
            pool.finish()
            results[f"seconds_{name}_{size}"] = statistics.median(seconds[name])
        results[f"ratio_ddp_{size}"] = results[f"seconds_threads_{size}"] / results[f"seconds_ddp_{size}"]
    return results | {"ratio_ddp": min(results[f"ratio_ddp_{size}"] for size in sizes)}


def checkpoint(sizes: Sequence[str], num_turns: int) -> dict[str, float]:
    """Sharded checkpoints of 2 processes at the default interval."""
    results: dict[str, float] = {}
    interval = PretrainRecipe().save_steps
    for size in sizes:
        pool = ProcessPool("sharded", size, 2, 1)
        steps = [pool.time("step") for _ in range(num_turns)]
        saves = [pool.time("save") for _ in range(max(3, num_turns // 2))]
        pool.finish()
        step, save = statistics.median(steps), statistics.median(saves)
        results |= {f"seconds_sharded_{size}": step, f"seconds_save_{size}": save}
        results[f"overhead_checkpoint_{size}"] = save / (interval * step)
    return results | {"overhead_checkpoint": max(results[f"overhead_checkpoint_{size}"] for size in sizes)}


def ray(sizes: Sequence[str], num_turns: int) -> dict[str, float]:
    """Preparation on 2 Ray workers against 2 processes; without a model, so sizes do not matter."""
    del sizes
    return compare_with_ray(min(num_turns, 3))


PARTS: dict[str, Callable[[Sequence[str], int], dict[str, float]]] = {"ddp": ddp, "checkpoint": checkpoint, "ray": ray}
# The targets.
TARGETS = {"ratio_ddp": "at least 0.9", "ratio_ray": "at least 0.85", "overhead_checkpoint": "at most 0.03"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--sizes", default="mini,small")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.sizes, options.folder)
        return
    results: dict[str, float] = {}
    for name in options.only.split(","):
        results |= PARTS[name](options.sizes.split(","), options.turns)
    if options.json:
        print(json.dumps(results))
        return
    for key, value in results.items():
        print(f"{key:<32} {value:.5g}" + (f"   ({TARGETS[key]})" if key in TARGETS else ""))


if __name__ == "__main__":
    main()
