"""The recipe that a fine-tuning run and its checkpoints belong to: a recipe in, recipe.toml and what is hashed out.

Keys that a run of an earlier version did not know count with their defaults, so that it can be resumed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.errors import SettingsError
from bertworks.settings import from_table, recipe_table, to_toml, write_recipe
from bertworks.tasks.memory import EXAMPLES
from bertworks.training.optimizer import AdamSettings


def write_run_recipe(folder: Path, task: str, recipe: FinetuneRecipe) -> None:
    """Write recipe.toml, or check that the one there trains the same model; one of an earlier version may lack keys."""
    path, text = folder / "recipe.toml", f"task = {json.dumps(task)}\n" + to_toml(recipe)
    with contextlib.suppress(SettingsError):
        previous = run_table(folder)
        is_same_task = previous.pop("task", None) == task
        previous_recipe = replace(from_table(FinetuneRecipe, previous, str(path)), baselines=recipe.baselines)
        if is_same_task and previous_recipe == recipe:
            text = path.read_text(encoding="utf-8")
    write_recipe(folder, text, ("restart-*", ".*", EXAMPLES))


def run_table(folder: Path) -> dict[str, Any]:
    """Return the recipe.toml of a run; empty if there is none. A run of before there was a choice of optimizers has
    Adam."""
    path = folder / "recipe.toml"
    if not path.is_file():
        return {}
    table = recipe_table(path)
    return {**table, "optimizer": {"name": AdamSettings().name, **table.get("optimizer", {})}}


def hashed_settings(recipe: FinetuneRecipe) -> dict[str, Any]:
    """Return the settings that must be equal for a checkpoint to be resumed.

    Keys of later versions count only if they are used: [adapt], class_weights, r_drop, distill_weight, Muon,
    embedding_lr_ratio. Baselines do not change the model.
    """
    settings = asdict(recipe)
    del settings["baselines"]
    if not recipe.adapt.epochs:
        del settings["adapt"]
    if not recipe.class_weights:
        del settings["class_weights"]
    for name in ("r_drop", "distill_weight"):
        if not settings[name]:
            del settings[name]
    settings["optimizer"] = recipe.optimizer.hashed_settings()
    settings["layerwise"] = recipe.layerwise.hashed_settings()
    if recipe.evals_per_epoch.is_integer():  # it was an integer once
        settings["evals_per_epoch"] = int(recipe.evals_per_epoch)
    return settings


def with_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in a run.json with those keys that it lacks, as they were before there were such keys."""
    recipe = FinetuneRecipe(pair_order="given", r_drop=0.0, distill_weight=0.0, optimizer=AdamSettings())
    return {**json.loads(json.dumps(asdict(recipe))), **settings}
