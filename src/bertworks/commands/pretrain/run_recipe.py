"""The recipe that a run folder and its checkpoints belong to: a recipe in, recipe.toml and a hash out.

A run may be continued with another schedule, as long as that agrees on the steps it has taken: its end and its decay
can be decided late. The result is that of a run with the new recipe from its first step.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path

from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.commands.pretrain.run_schedule import build_schedule, step_records
from bertworks.corpus.corpus import Corpus
from bertworks.disk import LOCK, write_text
from bertworks.errors import FolderError, SettingsError
from bertworks.settings import read_recipe, to_toml, write_recipe
from bertworks.training.checkpoint import checkpoints_in, step_of


def write_run_recipe(output: Path, recipe: PretrainRecipe, earlier: PretrainRecipe | None = None) -> None:
    """Write recipe.toml, over an `earlier` recipe if there is one, or check that the one there is equal.

    One of an earlier version may lack keys.
    """
    path, text = output / "recipe.toml", to_toml(recipe)
    if earlier is not None:
        write_text(path, text)
        return
    with contextlib.suppress(SettingsError):
        if path.exists() and read_recipe(path, PretrainRecipe) == recipe:
            text = path.read_text(encoding="utf-8")
    write_recipe(output, text, (".*.part", LOCK))


def read_earlier_recipe(output: Path, recipe: PretrainRecipe) -> PretrainRecipe | None:
    """Return the recipe of a run that this one continues with another schedule; None if it is no such run.

    FolderError if the schedules disagree on a step of the run before its last checkpoint.
    """
    path, checkpoints = output / "recipe.toml", checkpoints_in(output / "checkpoints")
    if not path.exists() or not checkpoints:
        return None
    try:
        earlier = read_recipe(path, PretrainRecipe)
    except SettingsError:
        return None
    changed = replace(earlier, phases=recipe.phases, schedule=recipe.schedule, decay_ratio=recipe.decay_ratio)
    if earlier == recipe or changed != recipe or earlier.budget or recipe.budget:
        return None
    _check_past(output, earlier, recipe, step_of(checkpoints[-1]))
    return earlier


def _check_past(output: Path, earlier: PretrainRecipe, recipe: PretrainRecipe, last_step: int) -> None:
    before, after = (build_schedule(each, output) for each in (earlier, recipe))
    phases_before, phases_after = ([replace(phase, steps=0) for phase in r.resolve_phases()] for r in (earlier, recipe))
    for record in step_records(output):
        old, new = (schedule.at(record.step - 1, 0.0) for schedule in (before, after))
        if record.step > last_step:
            return
        is_same_phase = (
            old.phase is not None and new.phase is not None and phases_before[old.phase] == phases_after[new.phase]
        )
        if not is_same_phase or old.learning_rate != new.learning_rate:
            raise FolderError(
                f"{output} holds a run of another recipe, whose step {record.step:,} differs: only what follows step "
                f"{last_step:,} can be changed; choose another folder with --output, or keep the earlier steps"
            )


def recipe_hash(recipe: PretrainRecipe, corpus: Corpus, init_digest: str = "") -> str:
    """Return a hash of what must be equal for a checkpoint to be resumed: recipe, corpus and initial model."""
    ignored = {"micro_batch_size", "save_steps", "activation_checkpointing"}  # they do not change the result
    if recipe.schedule != "wsd":
        ignored.add("decay_ratio")
    if not recipe.ema_decay:
        ignored.add("ema_decay")
    settings = {name: value for name, value in asdict(recipe).items() if name not in ignored}
    settings["optimizer"] = recipe.optimizer.hashed_settings()
    settings["layerwise"] = recipe.layerwise.hashed_settings()
    for name in ("generator_size", "local_attention", "global_attn_every_n_layers"):  # added later
        if settings["model"][name] is None:
            del settings["model"][name]
    # Values that a phase takes from the recipe are left out, as before phases could have their own.
    settings["phases"] = [
        {name: value for name, value in phase.items() if value is not None} for phase in settings["phases"]
    ]
    hashed = [settings, corpus.tokens_manifest["shards"], init_digest]
    return hashlib.sha256(json.dumps(hashed, sort_keys=True, default=str).encode()).hexdigest()[:16]
