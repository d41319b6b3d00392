"""The recipe that a fine-tuning run and its checkpoints belong to: a recipe in, recipe.toml and what is hashed out.

Keys that a run of an earlier version did not know count with their defaults, so that it can be resumed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.errors import SettingsError
from bertworks.settings import from_table, recipe_table, to_toml, write_recipe


def write_run_recipe(folder: Path, task: str, recipe: FinetuneRecipe) -> None:
    """Write recipe.toml, or check that the one there is equal; one of an earlier version may lack keys."""
    path, text = folder / "recipe.toml", f"task = {json.dumps(task)}\n" + to_toml(recipe)
    with contextlib.suppress(SettingsError):
        if path.exists() and _read_run_recipe(path) == (task, recipe):
            text = path.read_text(encoding="utf-8")
    write_recipe(folder, text, ("restart-*", ".*"))


def _read_run_recipe(path: Path) -> tuple[str, FinetuneRecipe]:
    table = recipe_table(path)
    return table.pop("task", ""), from_table(FinetuneRecipe, table, str(path))


def hashed_settings(recipe: FinetuneRecipe) -> dict[str, Any]:
    """Return the settings that must be equal for a checkpoint to be resumed: without [adapt] if it is not used, as
    before there was one."""
    settings = asdict(recipe)
    if not recipe.adapt.epochs:
        del settings["adapt"]
    return settings


def with_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in a run.json with the defaults of the keys that it lacks."""
    return {**json.loads(json.dumps(asdict(FinetuneRecipe()))), **settings}
