"""The recipe that a run folder and its checkpoints belong to: a recipe in, recipe.toml and a hash out."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.corpus.corpus import Corpus
from bertworks.disk import LOCK
from bertworks.errors import SettingsError
from bertworks.settings import read_recipe, to_toml, write_recipe


def write_run_recipe(output: Path, recipe: PretrainRecipe) -> None:
    """Write recipe.toml, or check that the one there is equal; one of an earlier version may lack keys."""
    path, text = output / "recipe.toml", to_toml(recipe)
    with contextlib.suppress(SettingsError):
        if path.exists() and read_recipe(path, PretrainRecipe) == recipe:
            text = path.read_text(encoding="utf-8")
    write_recipe(output, text, (".*.part", LOCK))


def recipe_hash(recipe: PretrainRecipe, corpus: Corpus, init_digest: str = "") -> str:
    """Return a hash of what must be equal for a checkpoint to be resumed: recipe, corpus and initial model."""
    ignored = {"micro_batch_size", "save_steps", "activation_checkpointing"}  # they do not change the result
    if recipe.schedule != "wsd":
        ignored.add("decay_ratio")
    if not recipe.ema_decay:
        ignored.add("ema_decay")
    settings = {name: value for name, value in asdict(recipe).items() if name not in ignored}
    if recipe.optimizer.name == "adam":  # the keys of Muon were added later
        settings["optimizer"] = {
            name: value for name, value in settings["optimizer"].items() if name not in ("name", "momentum")
        }
    for name in ("generator_size", "local_attention", "global_attn_every_n_layers"):  # added later
        if settings["model"][name] is None:
            del settings["model"][name]
    # Values that a phase takes from the recipe are left out, as before phases could have their own.
    settings["phases"] = [
        {name: value for name, value in phase.items() if value is not None} for phase in settings["phases"]
    ]
    hashed = [settings, corpus.tokens_manifest["shards"], init_digest]
    return hashlib.sha256(json.dumps(hashed, sort_keys=True, default=str).encode()).hexdigest()[:16]
