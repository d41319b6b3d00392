"""Will a run fit? A recipe and a device in, the recipe with a micro-batch that fits out, and what there is to say."""

from __future__ import annotations

from dataclasses import replace

import torch

from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.encoders.stack import BertConfig
from bertworks.errors import SettingsError
from bertworks.parallel.machine import available_bytes
from bertworks.training.memory import largest_micro_batch_size, step_bytes
from bertworks.training.process_group import all_reduce_min, local_batch_size, local_world_size

_USABLE_MEMORY_RATIO = 0.8  # of the free memory


def fit_recipe_to_memory(
    recipe: PretrainRecipe, config: BertConfig, previous_size: int, device: torch.device, num_shards: int = 1
) -> tuple[PretrainRecipe, list[str]]:
    """Choose a micro-batch that fits into memory, that of `before` if it does; the effective batch stays as it is."""
    longest = max(phase.max_length for phase in recipe.phases)
    available = available_bytes(device) // (local_world_size() if device.type == "cpu" else 1)
    share = local_batch_size(recipe.batch_size)
    wanted = min(previous_size or recipe.micro_batch_size or share, share)
    usable = int(_USABLE_MEMORY_RATIO * available)
    found = all_reduce_min(
        largest_micro_batch_size(config, wanted, longest, usable, recipe.activation_checkpointing, num_shards) or 0
    )
    if not found:
        needed = step_bytes(config, 1, longest, recipe.activation_checkpointing, num_shards)
        advice = (
            "a smaller model or length"
            if recipe.activation_checkpointing
            else "recompute = true, a smaller model or length"
        )
        raise SettingsError(
            f"one example of length {longest} needs about {needed / 2**30:.1f} GiB, and {available / 2**30:.1f} GiB "
            f"are free; choose {advice}"
        )
    told = step_bytes(config, found, longest, recipe.activation_checkpointing, num_shards)
    notes = [f"a step takes about {told / 2**30:.2f} GiB" + (" in each process" if num_shards > 1 else "")]
    if found < wanted:
        notes.append(
            f"micro-batches of {found} instead of {wanted}, so that it fits; the batch stays {recipe.batch_size}"
        )
    return replace(recipe, micro_batch_size=found), notes
