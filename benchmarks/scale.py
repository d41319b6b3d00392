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
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
from children import SPIN_SECONDS, Child
from pretraining_steps import VOCAB_SIZE, make_batches
from scale_ray import compare_with_ray

BATCH_SIZE = 32
NUM_BATCHES = 4


@contextmanager
def process_pool(kind: str, size: str, num_processes: int, num_threads: int) -> Iterator[Callable[[str], float]]:
    """Start processes; yield a function that lets them all do a step, or save, and returns the time of the slowest."""
    with socket.socket() as free_socket:
        free_socket.bind(("127.0.0.1", 0))
        port = free_socket.getsockname()[1]
    environment = {"WORLD_SIZE": num_processes, "LOCAL_WORLD_SIZE": num_processes, "MASTER_PORT": port}
    environment |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": num_threads}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bertworks-scale-"))
        command = [sys.executable, __file__, "--child", kind, "--sizes", size, "--folder", folder]
        processes = [
            stack.enter_context(
                Child(
                    f"{size}, {kind}, process {rank} of {num_processes}",
                    command,
                    {"RANK": str(rank), **{name: str(value) for name, value in environment.items()}},
                )
            )
            for rank in range(num_processes)
        ]

        def timed(action: str) -> float:
            time.sleep(SPIN_SECONDS)
            for process in processes:
                process.send(action)
            return max(float(process.read()) for process in processes)

        for _ in range(2):  # warmup
            timed("step")
        yield timed


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
        with process_pool("plain", size, 1, 2) as threads, process_pool("plain", size, 2, 1) as processes:
            turns = [(threads("step"), processes("step")) for _ in range(num_turns)]
        for name, seconds in zip(("threads", "ddp"), zip(*turns, strict=True), strict=True):
            results[f"seconds_{name}_{size}"] = statistics.median(seconds)
        results[f"ratio_ddp_{size}"] = results[f"seconds_threads_{size}"] / results[f"seconds_ddp_{size}"]
    return results | {"ratio_ddp": min(results[f"ratio_ddp_{size}"] for size in sizes)}


def checkpoint(sizes: Sequence[str], num_turns: int) -> dict[str, float]:
    """Sharded checkpoints of 2 processes at the default interval."""
    results: dict[str, float] = {}
    interval = PretrainRecipe().save_steps
    for size in sizes:
        with process_pool("sharded", size, 2, 1) as timed:
            steps = [timed("step") for _ in range(num_turns)]
            saves = [timed("save") for _ in range(max(3, num_turns // 2))]
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
