"""The recipe of a run folder: one of an earlier version, without the section [adapt], is still the same recipe."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from bertworks.commands.finetune.adapt_settings import AdaptSettings
from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.run_recipe import hashed_settings, with_defaults, write_run_recipe
from bertworks.errors import FolderError
from bertworks.settings import to_toml
from bertworks.training.optimizer import AdamSettings, LayerwiseSettings

RECIPE = FinetuneRecipe(learning_rate=1e-4, epochs=2)
ADAPTED = replace(RECIPE, adapt=AdaptSettings(epochs=3))


def old_text(task: str = "classify") -> str:
    """The recipe.toml of a version without [adapt]."""
    text = f'task = "{task}"\n{to_toml(RECIPE)}'
    start = text.index("\n[adapt]")
    end = text.find("\n[", start + 1)
    return text[:start] + (text[end:] if end >= 0 else "")


def test_the_recipe_of_an_earlier_version_stays_as_it_is(tmp_path: Path):
    (tmp_path / "recipe.toml").write_text(old_text())
    write_run_recipe(tmp_path, "classify", RECIPE)
    assert (tmp_path / "recipe.toml").read_text() == old_text()


@pytest.mark.parametrize(("task", "recipe"), [("regress", RECIPE), ("classify", ADAPTED)])
def test_another_task_or_an_adaptation_is_another_recipe(task: str, recipe: FinetuneRecipe, tmp_path: Path):
    (tmp_path / "recipe.toml").write_text(old_text())
    with pytest.raises(FolderError, match="holds a run of another recipe"):
        write_run_recipe(tmp_path, task, recipe)


def test_a_new_recipe_is_written_with_its_task(tmp_path: Path):
    write_run_recipe(tmp_path / "run", "tag", ADAPTED)
    text = (tmp_path / "run" / "recipe.toml").read_text()
    assert text.startswith('task = "tag"\n')
    assert "[adapt]\nepochs = 3\n" in text


# The keys of a version without class weights, Muon, baselines and adaptation.
NEW_KEYS = {"adapt", "baselines", "class_weights", "r_drop", "distill_weight"}
NEW_OPTIMIZER_KEYS = {"name", "momentum"}


def test_the_hashed_settings_are_those_of_earlier_versions_unless_new_keys_are_used():
    settings = hashed_settings(RECIPE)
    assert set(asdict(RECIPE)) - set(settings) == NEW_KEYS
    assert set(asdict(RECIPE.optimizer)) - set(settings["optimizer"]) == NEW_OPTIMIZER_KEYS
    assert hashed_settings(ADAPTED)["adapt"]["epochs"] == 3
    assert hashed_settings(replace(RECIPE, class_weights="balanced"))["class_weights"] == "balanced"
    assert hashed_settings(replace(RECIPE, r_drop=2.0))["r_drop"] == 2.0
    assert hashed_settings(replace(RECIPE, distill_weight=2.0))["distill_weight"] == 2.0
    assert hashed_settings(replace(RECIPE, r_drop=0.0, distill_weight=0.0)) == settings
    assert hashed_settings(replace(RECIPE, optimizer=AdamSettings(name="muon")))["optimizer"]["momentum"] == 0.95
    fast = replace(RECIPE, layerwise=LayerwiseSettings(embedding_lr_ratio=5.0))
    assert hashed_settings(fast)["layerwise"]["embedding_lr_ratio"] == 5.0
    assert "embedding_lr_ratio" not in settings["layerwise"]
    assert hashed_settings(replace(RECIPE, baselines=False)) == settings


def test_evaluations_per_epoch_were_integers_once():
    whole, part = (hashed_settings(replace(RECIPE, evals_per_epoch=number)) for number in (2.0, 0.5))
    assert json.dumps([whole["evals_per_epoch"], part["evals_per_epoch"]]) == "[2, 0.5]"


def test_settings_without_a_key_have_its_default():
    settings = asdict(RECIPE)
    del settings["adapt"]
    del settings["r_drop"], settings["distill_weight"]
    assert (with_defaults(settings)["r_drop"], with_defaults(settings)["distill_weight"]) == (0.0, 0.0)
    assert with_defaults(settings)["adapt"] == {"epochs": 0, "learning_rate": 1e-4, "batch_size": 32}
    assert with_defaults(asdict(ADAPTED))["adapt"]["epochs"] == 3
