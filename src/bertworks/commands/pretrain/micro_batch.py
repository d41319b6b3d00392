"""Will a run fit? A recipe and a device in, the recipe with a micro-batch that fits out, and what there is to say."""

from __future__ import annotations

from dataclasses import replace

import torch

from bertworks.commands.pretrain.recipe import Recipe
from bertworks.encoders.stack import BertSizes
from bertworks.errors import SettingsError
from bertworks.parallel.machine import available_bytes
from bertworks.training.memory import fitting_micro_batch, step_bytes
from bertworks.training.process_group import num_neighbours, share_of, smallest

_USABLE_RATE = 0.8  # of the free memory


def fitted(
    recipe: Recipe, sizes: BertSizes, before: int, device: torch.device, num_shards: int = 1
) -> tuple[Recipe, list[str]]:
    """Choose a micro-batch that fits into memory, that of `before` if it does; the effective batch stays as it is."""
    longest = max(phase.length for phase in recipe.phases)
    available = available_bytes(device) // (num_neighbours() if device.type == "cpu" else 1)
    share = share_of(recipe.batch)
    wanted = min(before or recipe.micro_batch or share, share)
    usable = int(_USABLE_RATE * available)
    found = smallest(fitting_micro_batch(sizes, wanted, longest, usable, recipe.recompute, num_shards) or 0)
    if not found:
        needed = step_bytes(sizes, 1, longest, recipe.recompute, num_shards)
        advice = "a smaller model or length" if recipe.recompute else "recompute = true, a smaller model or length"
        raise SettingsError(
            f"one example of length {longest} needs about {needed / 2**30:.1f} GiB, and {available / 2**30:.1f} GiB "
            f"are free; choose {advice}"
        )
    told = step_bytes(sizes, found, longest, recipe.recompute, num_shards)
    notes = [f"a step takes about {told / 2**30:.2f} GiB" + (" in each process" if num_shards > 1 else "")]
    if found < wanted:
        notes.append(f"micro-batches of {found} instead of {wanted}, so that it fits; the batch stays {recipe.batch}")
    return replace(recipe, micro_batch=found), notes
