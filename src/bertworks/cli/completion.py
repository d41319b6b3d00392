"""Completion of values in a shell: the beginning of a word in, the names that it may become out.

A shell completes paths by itself where no name fits.
"""

from __future__ import annotations

from bertworks.choices import TASKS
from bertworks.packages import MODELS, available_models
from bertworks.settings import recipe_names


def complete_model(incomplete: str) -> list[str]:
    """Complete the names of our models and of those that are installed."""
    return _beginning_with(incomplete, [*MODELS, *available_models()])


def complete_task(incomplete: str) -> list[str]:
    """Complete the tasks and the published datasets."""
    from bertworks.datasets.published import DATASETS

    return _beginning_with(incomplete, [*TASKS, *DATASETS])


def complete_recipe(incomplete: str) -> list[str]:
    """Complete the built-in recipes of pretraining."""
    return _beginning_with(incomplete, recipe_names())


def complete_finetune_recipe(incomplete: str) -> list[str]:
    """Complete the built-in recipes of fine-tuning."""
    return _beginning_with(incomplete, recipe_names("finetune"))


def complete_compare_recipe(incomplete: str) -> list[str]:
    """Complete the built-in comparisons."""
    return _beginning_with(incomplete, recipe_names("compare"))


def _beginning_with(start: str, names: list[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(start)]
