"""Build the module to fine-tune: a base model folder, a task and a recipe in, a TaskModule out."""

from __future__ import annotations

import torch
from torch import nn

from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.encoders.encoder import Encoder, init_weights
from bertworks.errors import SettingsError
from bertworks.models.folder import ModelFolder, load_encoder
from bertworks.models.tensor_names import load_into
from bertworks.objectives.heads import MlmHead
from bertworks.tasks.contract import Task
from bertworks.tasks.module import AuxiliaryLoss, TaskModule
from bertworks.tasks.recurrent_head import RecurrentSettings


def build_module(base: ModelFolder, task: Task, recipe: FinetuneRecipe, generator: torch.Generator) -> TaskModule:
    """Return the encoder of a folder, pretrained or new, with a new head for the task."""
    encoder = load_encoder(base, generator)[0] if base.tensors else base.family.build(base.encoder_config, generator)
    if recipe.dropout is not None:
        encoder.set_dropout(recipe.dropout)
    encoder.activation_checkpointing = recipe.activation_checkpointing
    auxiliary = _auxiliary_loss(base, encoder, recipe, generator)
    return TaskModule(encoder, task, generator, auxiliary, _recurrent_settings(recipe))


def _recurrent_settings(recipe: FinetuneRecipe) -> RecurrentSettings | None:
    if recipe.feature_layers:
        return RecurrentSettings(recipe.feature_layers, recipe.recurrent_hidden_size)
    if recipe.head == "recurrent":
        return RecurrentSettings("last", recipe.recurrent_hidden_size, freeze_encoder=False)
    return None


def _auxiliary_loss(
    base: ModelFolder, encoder: Encoder, recipe: FinetuneRecipe, generator: torch.Generator
) -> AuxiliaryLoss | None:
    """Return the auxiliary language-model loss of a recipe; refuse one that does not fit the model."""
    if recipe.lm_weight:
        if encoder.attention != "causal":
            raise SettingsError(
                f"lm_weight needs a causal model, but the attention of this one is {encoder.attention}; use mlm_weight"
            )
        return AuxiliaryLoss(None, recipe.lm_weight)
    if not recipe.mlm_weight:
        return None
    if "mlm" not in base.family.heads:
        raise SettingsError(f"'{encoder.config.model_type}' models have no masked-LM head; use lm_weight")
    head = MlmHead(encoder.config)
    init_weights(head, encoder.config.initializer_range, generator)
    if not load_into(head, base.tensors, base.family.heads["mlm"]).loaded_keys:
        nn.init.zeros_(head.norm.weight)  # a new head outputs zeros at first, so that it does not disturb the encoder
    return AuxiliaryLoss(head, recipe.mlm_weight)
