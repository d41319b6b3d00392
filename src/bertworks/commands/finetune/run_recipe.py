"""The recipe that a run folder and its checkpoints belong to: a request in, recipe.toml and a hash out."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneRequest
from bertworks.disk import sha256, write_text
from bertworks.errors import SettingsError
from bertworks.settings import from_table, recipe_table, to_toml, write_recipe
from bertworks.vocabulary.tokenizer import Tokenizer

# Settings that do not change the model. Runs from before they existed can be continued.
_IGNORED = ("baselines",)


def write_run_recipe(folder: Path, request: FinetuneRequest) -> None:
    """Write recipe.toml, or check that the one there trains the same model; one of an earlier version may lack keys."""
    path, text = folder / "recipe.toml", f"task = {json.dumps(request.task)}\n{to_toml(request.recipe)}"
    if path.exists() and _trains_the_same(path, request):
        write_text(path, text)
    else:
        write_recipe(folder, text, ("restart-*", ".*"))


def _trains_the_same(path: Path, request: FinetuneRequest) -> bool:
    with contextlib.suppress(SettingsError):
        table = recipe_table(path)
        task = table.pop("task", None)
        recipe = from_table(FinetuneRecipe, table, str(path))
        return task == request.task and training_settings(asdict(recipe)) == training_settings(asdict(request.recipe))
    return False


def training_settings(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a recipe that change the model."""
    return {name: value for name, value in recipe.items() if name not in _IGNORED}


def run_digest(request: FinetuneRequest) -> str:
    """Return a hash of all inputs; a checkpoint can be resumed only with the same ones."""
    files = [sha256(path) for path in request.files]
    vocabulary = "" if request.vocabulary is None else Tokenizer.load(request.vocabulary).hash
    recipe = training_settings(asdict(request.recipe))
    inputs = [request.task, request.model, vocabulary, files, recipe, request.columns, request.settings]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True, default=str).encode()).hexdigest()[:16]
