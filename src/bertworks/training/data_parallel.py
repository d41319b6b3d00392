"""Data parallelism: an objective in, the same module with gradients averaged over all processes out (DDP)."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch.nn.parallel import DistributedDataParallel

from bertworks.encoders.layers import DropoutSeeds
from bertworks.errors import SettingsError
from bertworks.objectives.objective import ObjectiveModule
from bertworks.parallel.process_group import world_size
from bertworks.sampling.batch import Batch
from bertworks.training.loop import Trainable
from bertworks.training.sharding import is_sharded


def local_batch_size(batch_size: int) -> int:
    """Return how many examples of a global batch each process takes."""
    if batch_size % world_size():
        raise SettingsError(
            f"a batch size of {batch_size} is not divisible by {world_size()} processes; choose a multiple of "
            f"{world_size()} with --batch-size (or as batch_size of the phase), or another --nproc-per-node"
        )
    return batch_size // world_size()


def wrap_ddp(module: ObjectiveModule, get_batch: Callable[[], Batch]) -> Trainable:
    """Wrap a module in DDP; a single process or a sharded module needs no wrapper."""
    if world_size() == 1 or is_sharded(module):
        return module
    wrapped = DistributedDataParallel(module)
    if world_size() > 2:
        # DDP rebuilds its buckets after the first backward pass, and with them the order in which the gradients of more
        # than two processes are added. A discarded first pass makes the first step of a resumed run bit-identical, too.
        batch = get_batch()
        module.train()
        seeds = DropoutSeeds(torch.tensor(0, dtype=torch.int32, device=batch.input_ids.device))
        wrapped(batch, dict.fromkeys(module.counts(batch), 1.0), seeds).value.backward()
        wrapped.zero_grad(set_to_none=True)
    return cast(Trainable, wrapped)
