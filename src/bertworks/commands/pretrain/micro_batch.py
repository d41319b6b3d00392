"""Fit a run into memory: a recipe and a device in, the recipe with a micro-batch size that fits out, and messages."""

from __future__ import annotations

from dataclasses import replace

import torch

from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.encoders.config import EncoderConfig
from bertworks.errors import SettingsError
from bertworks.parallel.machine import available_bytes
from bertworks.parallel.process_group import all_reduce_min, local_world_size
from bertworks.training.data_parallel import local_batch_size
from bertworks.training.memory import ema_bytes, largest_micro_batch_size, step_bytes

_USABLE_MEMORY_RATIO = 0.8  # of the free memory


def fit_recipe_to_memory(
    recipe: PretrainRecipe, config: EncoderConfig, previous_size: int, device: torch.device, num_shards: int = 1
) -> tuple[PretrainRecipe, list[str]]:
    """Choose a micro-batch size that fits into memory in all phases, `previous_size` if it does.

    Batch sizes do not change; each has to be divisible by the number of processes.
    """
    available = available_bytes(device) // (local_world_size() if device.type == "cpu" else 1)
    phases = [(local_batch_size(phase.batch_size), phase.max_length) for phase in recipe.resolve_phases()]
    local_size = max(batch_size for batch_size, _ in phases)
    target_size = min(previous_size or recipe.micro_batch_size or local_size, local_size)
    average_bytes = ema_bytes(config, recipe.ema_decay, num_shards)
    usable = int(_USABLE_MEMORY_RATIO * available) - average_bytes
    checkpointing = recipe.activation_checkpointing
    # A phase with smaller batches than the target limits it only if these do not fit either.
    limits = [
        size
        for target, max_length in ((min(target_size, batch_size), length) for batch_size, length in phases)
        if (size := largest_micro_batch_size(config, target, max_length, usable, checkpointing, num_shards) or 0)
        < target
    ]
    size = all_reduce_min(min(limits, default=target_size))
    if not size:
        max_length = max(length for _, length in phases)
        required = step_bytes(config, 1, max_length, checkpointing, num_shards) + average_bytes
        advice = (
            "a smaller model or max_length"
            if checkpointing
            else "activation_checkpointing = true, a smaller model or max_length"
        )
        raise SettingsError(
            f"one example of length {max_length} needs about {required / 2**30:.1f} GiB, and {available / 2**30:.1f} "
            f"GiB are free; choose {advice}"
        )
    num_bytes = average_bytes + max(
        step_bytes(config, min(size, batch_size), max_length, checkpointing, num_shards)
        for batch_size, max_length in phases
    )
    notes = [f"a step needs about {num_bytes / 2**30:.2f} GiB" + (" in each process" if num_shards > 1 else "")]
    if size < target_size:
        batch_sizes = sorted({phase.batch_size for phase in recipe.resolve_phases()})
        notes.append(
            f"micro_batch_size is {size} instead of {target_size} to fit into memory; batch_size stays "
            f"{', '.join(map(str, batch_sizes))}"
        )
    return replace(recipe, micro_batch_size=size), notes
