"""The model of a pretraining run: a config or an existing model in, a module to train out; and its model folder."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bertworks.commands.pretrain.recipe import ModelRecipe, PretrainRecipe
from bertworks.encoders.bert import Bert
from bertworks.encoders.config import EncoderConfig
from bertworks.encoders.families import architecture_of, family_of
from bertworks.encoders.initialization import init_neighbor_attention, init_sinusoidal_positions
from bertworks.errors import SettingsError
from bertworks.models.folder import ModelFolder, check_tied, read_folder, write_folder
from bertworks.models.hub import fetch
from bertworks.models.resize import ResizedModel, resize_token_embeddings
from bertworks.models.sentence_files import read_sentence_files
from bertworks.models.tensor_names import combine_name_tables, load_into, to_hf_names
from bertworks.objectives.mlm import MlmModule
from bertworks.objectives.objective import ObjectiveModule
from bertworks.objectives.registry import OBJECTIVES, check_objective
from bertworks.training.optimizer import freeze
from bertworks.vocabulary.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ModelInit:
    """The initial model of a run: a config for random weights, or an existing model resized to the vocabulary.

    `digest` is a hash of the existing model's weights; empty without one. `sentence_files` are its files of
    sentence-transformers, which the new model keeps.
    """

    config: EncoderConfig
    tokenizer: Tokenizer
    base_model: ResizedModel | None = None
    digest: str = ""
    sentence_files: Mapping[str, bytes] = field(default_factory=dict, kw_only=True)


def resolve_model_init(recipe: PretrainRecipe, tokenizer: Tokenizer, init_model: str | None) -> ModelInit:
    """Return the recipe's config, or the existing model `init_model` (a folder, or a name on the hub)."""
    if init_model is None:
        config = recipe.model.config(tokenizer.vocab_size).with_pad_token_id(tokenizer.specials.pad)
        return ModelInit(config, tokenizer)
    folder = read_folder(fetch(init_model))
    check_tied(folder)
    resized = resize_token_embeddings(folder, tokenizer)
    config = folder.family.config_from_dict(resized.config)
    check_objective(config.model_type, recipe.objective)
    sentence_files = read_sentence_files(folder.path)
    return ModelInit(config, tokenizer, resized, _digest(resized.tensors), sentence_files=sentence_files)


def shorten_phases(recipe: PretrainRecipe, config: EncoderConfig) -> tuple[PretrainRecipe, list[str]]:
    """Return the recipe with sequences that fit the positions of an existing model, and a note if some did not."""
    longest = max(phase.max_length for phase in recipe.phases)
    if longest <= config.max_length:
        return recipe, []
    phases = tuple(replace(phase, max_length=min(phase.max_length, config.max_length)) for phase in recipe.phases)
    note = f"the model has {config.max_length} positions: phases of {longest} tokens are shortened to that"
    return replace(recipe, phases=phases), [note]


def new_model_folder(model: ModelRecipe | None, vocabulary: Path | None) -> ModelFolder:
    """Return a model folder without weights for a new model: the recipe's config and the files of a vocabulary."""
    if model is None or vocabulary is None:
        raise SettingsError(
            "name a model to fine-tune (--model), or train a new one: --recipe with a [model], such as transformer, "
            "and a vocabulary (--vocab)"
        )
    config = model.config(Tokenizer.load(vocabulary).vocab_size)
    return ModelFolder(vocabulary, family_of(config.model_type).config_to_dict(config, []), {}, {})


def build(
    model_init: ModelInit, recipe: PretrainRecipe, token_counts: npt.NDArray[np.int64]
) -> tuple[ObjectiveModule, list[str]]:
    """Return the module to train, and messages about it. `token_counts` holds the frequency of each token."""
    generator = torch.Generator().manual_seed(recipe.seed)
    encoder = family_of(model_init.config.model_type).build(model_init.config, generator)
    encoder.set_tokenizer(model_init.tokenizer)
    module = OBJECTIVES[recipe.objective].build(encoder, generator)
    module.encoder.activation_checkpointing = recipe.activation_checkpointing
    notes = []
    if model_init.base_model is None:
        _initialize_weights(module, recipe, token_counts)
    else:
        report = load_into(module, model_init.base_model.tensors, tensor_names_of(module))
        if report.missing_keys:
            notes.append(f"not in the model, initialized randomly: {', '.join(report.missing_keys)}")
        notes += _describe_added_tokens(model_init.base_model)
    freeze(module, recipe.layerwise)
    if recipe.compile:
        for layer in module.encoder.layers:
            layer.compile(dynamic=False)
    return module, notes


def _initialize_weights(module: ObjectiveModule, recipe: PretrainRecipe, token_counts: npt.NDArray[np.int64]) -> None:
    """Apply position_init and output_bias_init of the recipe; all other weights stay random."""
    encoder = module.encoder
    if recipe.model.position_init != "normal":
        if not isinstance(encoder, Bert):
            raise SettingsError(f"position_init is for BERT; leave it out for the family '{encoder.config.model_type}'")
        init_sinusoidal_positions(encoder)
    if recipe.model.position_init == "neighbors":
        assert isinstance(encoder, Bert)
        init_neighbor_attention(encoder, torch.Generator().manual_seed(recipe.seed))
    if recipe.model.output_bias_init == "unigram":
        if not isinstance(module, MlmModule):
            raise SettingsError(f"output_bias_init is for MLM; leave it out for the objective '{recipe.objective}'")
        module.mlm_head.init_unigram_bias(token_counts)


def write_model(
    folder: Path,
    module: ObjectiveModule,
    tokenizer: Tokenizer,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor] | None = None,
    sentence_files: Mapping[str, bytes] | None = None,
) -> None:
    """Write a trained module as a model folder, with `tensors` instead of its own weights if they are given.

    `sentence_files` are those of a sentence-transformers base, by name.
    """
    config = module.encoder.config
    write_folder(
        folder,
        family_of(config.model_type).config_to_dict(config, [architecture_of(config, module.kind)]),
        to_hf_names(module.state_dict() if tensors is None else dict(tensors), tensor_names_of(module)),
        tokenizer,
        {"attention": module.attention, **metadata},
        sentence_files,
    )


def tensor_names_of(module: ObjectiveModule) -> dict[str, tuple[str, ...]]:
    """Return our names of all tensors of a module and those in a model folder."""
    family = family_of(module.encoder.config.model_type)
    heads = {part: family.heads[kind] for part, kind in module.heads.items()}
    names = combine_name_tables({"encoder": family.tensor_names(module.encoder.config), **heads})
    return {**names, **module.other_names}


def _describe_added_tokens(base_model: ResizedModel) -> list[str]:
    if not base_model.new_tokens:
        return ["the vocabulary is the model's own"]
    examples = "; ".join(
        f"'{token.token}' is initialized to the mean of {' '.join(token.source_tokens) or 'all tokens'}"
        for token in base_model.new_tokens[:3]
    )
    return [f"{len(base_model.new_tokens):,} new tokens: {examples}"]


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].detach().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
