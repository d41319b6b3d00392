"""The micro-batch size: as large as the memory of every phase allows, each with its own length and batch size."""

from dataclasses import replace

import pytest
import torch

from bertworks.commands.pretrain import micro_batch
from bertworks.commands.pretrain.micro_batch import fit_recipe_to_memory
from bertworks.commands.pretrain.recipe import PhaseRecipe, PretrainRecipe
from bertworks.encoders.bert import BertConfig
from bertworks.errors import SettingsError
from bertworks.training.memory import step_bytes

CONFIG = BertConfig(vocab_size=500, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128)
CPU = torch.device("cpu")


def recipe_of(*phases: tuple[int, int]) -> PretrainRecipe:
    """A recipe with phases of (max_length, batch_size)."""
    recipes = tuple(PhaseRecipe(length, steps=10, batch_size=size) for length, size in phases)
    return replace(PretrainRecipe(), warmup_steps=0, phases=recipes)


def give_memory(monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
    """Let a run use this many bytes."""
    monkeypatch.setattr(micro_batch, "available_bytes", lambda device: int(num_bytes / 0.8) + 1)


def test_a_phase_of_long_sequences_does_not_limit_the_larger_batches_of_short_ones(monkeypatch):
    give_memory(monkeypatch, step_bytes(CONFIG, 8, 512, False, 1))
    recipe, notes = fit_recipe_to_memory(recipe_of((32, 64), (512, 8)), CONFIG, 0, CPU)
    assert recipe.micro_batch_size == 64
    assert len(notes) == 1


def test_the_phase_that_needs_most_memory_decides(monkeypatch):
    give_memory(monkeypatch, step_bytes(CONFIG, 4, 512, False, 1))
    recipe, notes = fit_recipe_to_memory(recipe_of((32, 64), (512, 8)), CONFIG, 0, CPU)
    assert recipe.micro_batch_size == 4
    assert notes[1] == "micro_batch_size is 4 instead of 64 to fit into memory; batch_size stays 8, 64"


def test_an_example_that_does_not_fit_is_refused(monkeypatch):
    give_memory(monkeypatch, step_bytes(CONFIG, 1, 512, False, 1) // 2)
    with pytest.raises(SettingsError, match="one example of length 512 needs about"):
        fit_recipe_to_memory(recipe_of((32, 64), (512, 8)), CONFIG, 0, CPU)
