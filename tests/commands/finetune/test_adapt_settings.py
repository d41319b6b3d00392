"""The section [adapt] of a recipe: off by default, and wrong values are refused by the name of their key."""

from pathlib import Path

import pytest

from bertworks.commands.finetune.adapt_settings import AdaptSettings
from bertworks.commands.finetune.recipe import FinetuneRecipe, read_finetune_recipe
from bertworks.errors import SettingsError


def test_a_recipe_adapts_only_if_it_says_so(tmp_path: Path):
    assert FinetuneRecipe().adapt == AdaptSettings(epochs=0, learning_rate=1e-4, batch_size=32)
    path = tmp_path / "recipe.toml"
    path.write_text("[adapt]\nepochs = 7\nlearning_rate = 2e-4\n")
    recipe = read_finetune_recipe(path, {"adapt.epochs": None}, ["adapt.batch_size=8"])
    assert recipe.adapt == AdaptSettings(epochs=7, learning_rate=2e-4, batch_size=8)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("adapt.epochs=-1", "options, adapt: epochs is -1; it must be positive, or 0 for no adaptation"),
        ("adapt.batch_size=0", "options, adapt: batch_size is 0; it must be at least 1"),
        ("adapt.learning_rate=0", "options, adapt: learning_rate is 0.0; give a number above 0, such as 1e-4"),
        ("adapt.lr=1e-4", "there is no setting 'adapt.lr'; did you mean"),
    ],
)
def test_wrong_settings_are_refused(assignment: str, message: str):
    with pytest.raises(SettingsError, match=message):
        read_finetune_recipe(None, {}, [assignment])
