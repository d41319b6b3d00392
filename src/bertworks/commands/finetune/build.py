"""Build what a fine-tuning run trains: a base model folder, a task and a recipe in; out come a TaskModule, and the
module that adapts the model to the texts of the task before."""

from __future__ import annotations

import torch
from torch import nn

from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.pretrain.build import tensor_names_of
from bertworks.encoders.encoder import Encoder, init_weights
from bertworks.errors import SettingsError
from bertworks.models.folder import ModelFolder, check_tied, load_encoder
from bertworks.models.tensor_names import load_into
from bertworks.objectives.heads import MlmHead
from bertworks.objectives.objective import ObjectiveModule
from bertworks.objectives.registry import check_objective, objective_of
from bertworks.sampling.masking import MaskSettings
from bertworks.settings import from_table
from bertworks.tasks.contract import ConsistentTask, GenerativeTask, Task
from bertworks.tasks.module import AuxiliaryLoss, TaskModule
from bertworks.tasks.recurrent_head import RecurrentSettings
from bertworks.training.memory import check_model_fits
from bertworks.training.optimizer import LayerwiseSettings, freeze

# Objectives on pairs or on streams of sentences -> the same on single sequences, which is what a task has.
_ON_SEQUENCES = {"mlm-nsp": "mlm", "mlm-sop": "mlm", "causal-stream": "causal", "permutation-stream": "permutation"}
# The objective of a model folder that does not state one: the first of these that its family has a head for.
_DEFAULT_OBJECTIVES = ("mlm", "permutation", "bilm", "causal")


def build_module(base: ModelFolder, task: Task, recipe: FinetuneRecipe, generator: torch.Generator) -> TaskModule:
    """Return the encoder of a folder, pretrained or new, with a new head for the task."""
    if recipe.adapt.epochs:
        objective_on_sequences(base, task)  # refuses a model or a task without one, before anything is written
    encoder = build_encoder(base, generator)
    if recipe.dropout is not None:
        encoder.set_dropout(recipe.dropout)
    encoder.activation_checkpointing = recipe.activation_checkpointing
    auxiliary = _auxiliary_loss(base, encoder, recipe, generator)
    if recipe.r_drop and not isinstance(task, ConsistentTask):
        raise SettingsError(f"r_drop is for classify; the task is {task.name}")
    return TaskModule(
        encoder,
        task,
        generator,
        auxiliary,
        _recurrent_settings(recipe),
        r_drop=recipe.r_drop or 0.0,
        distill_weight=recipe.distill_weight or 0.0,
    )


def build_encoder(base: ModelFolder, generator: torch.Generator) -> Encoder:
    """Return the encoder of a folder with its weights, or with random ones if the folder has none."""
    if base.tensors:
        encoder = load_encoder(base, generator)[0]
    else:
        check_model_fits(base.encoder_config)
        encoder = base.family.build(base.encoder_config, generator)
    encoder.set_tokenizer(base.tokenizer)
    return encoder


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
    check_tied(base)
    head = MlmHead(encoder.config)
    init_weights(head, encoder.config.initializer_range, generator)
    if not load_into(head, base.tensors, base.family.heads["mlm"]).loaded_keys and head.has_transform:
        nn.init.zeros_(head.norm.weight)  # a new head outputs zeros at first, so that it does not disturb the encoder
    return AuxiliaryLoss(head, recipe.mlm_weight)


def objective_on_sequences(base: ModelFolder, task: Task) -> str:
    """Return the language-model objective that a model is adapted with; refuse a model or a task without one."""
    if isinstance(task, GenerativeTask):
        raise SettingsError("a translation has no texts to adapt a model to; leave out adapt.epochs")
    model_type = base.encoder_config.model_type
    name = base.metadata.get("objective", "causal" if base.metadata.get("attention") == "causal" else "")
    names = [name] if name else [candidate for candidate in _DEFAULT_OBJECTIVES if candidate in base.family.heads]
    if not names:
        raise SettingsError(
            f"a model of the family '{model_type}' has no language-model objective to adapt it with; leave out "
            f"adapt.epochs"
        )
    check_tied(base)
    objective = _ON_SEQUENCES.get(names[0], names[0])
    check_objective(model_type, objective)
    return objective


def masking_of(base: ModelFolder) -> MaskSettings:
    """Return how tokens were masked in the pretraining of a model, as far as its folder says; else as in the paper."""
    table = base.metadata.get("recipe", {}).get("masking", {})
    return from_table(MaskSettings, table, str(base.path / "bertworks.json"))


def build_lm_module(base: ModelFolder, task: Task, recipe: FinetuneRecipe) -> tuple[ObjectiveModule, bool]:
    """Return the encoder of a folder with the heads of its objective, and whether these are new."""
    generator = torch.Generator().manual_seed(recipe.seed)
    encoder = build_encoder(base, generator)
    encoder.activation_checkpointing = recipe.activation_checkpointing
    module = objective_of(objective_on_sequences(base, task)).build(encoder, generator)
    head_names = {ours: theirs for ours, theirs in tensor_names_of(module).items() if not ours.startswith("encoder.")}
    report = load_into(module, base.tensors, head_names)
    freeze(module, LayerwiseSettings())
    return module, bool(report.missing_keys) and not report.loaded_keys
