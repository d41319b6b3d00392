"""The model of a pretraining run: sizes or a model in, a module to train out; a trained one in, a folder out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bertworks.commands.pretrain.recipe import ModelRecipe, PretrainRecipe
from bertworks.encoders.bert import Bert
from bertworks.encoders.families import architecture_of, family_of
from bertworks.encoders.initialization import init_neighbor_attention, init_sinusoidal_positions
from bertworks.encoders.stack import BertConfig
from bertworks.errors import SettingsError
from bertworks.models.folder import ModelFolder, read_folder, write_folder
from bertworks.models.hub import fetch
from bertworks.models.resize import ResizedModel, resize_token_embeddings
from bertworks.models.tensor_names import combine_name_tables, load_into, to_hf_names
from bertworks.objectives.mlm import MlmObjective
from bertworks.objectives.registry import OBJECTIVES, Objective, check_objective
from bertworks.training.optimizer import freeze
from bertworks.vocabulary.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ModelInit:
    """What a run starts from: sizes alone, and then weights are drawn; or an existing model, grown to the vocabulary.

    `digest` tells one existing model from another; empty without one.
    """

    config: BertConfig
    tokenizer: Tokenizer
    base_model: ResizedModel | None = None
    digest: str = ""


def resolve_model_init(recipe: PretrainRecipe, tokenizer: Tokenizer, init_model: str | None) -> ModelInit:
    """Return the start of a run: the recipe's sizes, or the model of that name (a folder, or one on the hub)."""
    if init_model is None:
        sizes = recipe.model.config(tokenizer.vocab_size)
        if sizes.first_position:  # they are counted from behind the number of the padding piece
            sizes = replace(sizes, first_position=tokenizer.specials.pad + 1)
        return ModelInit(sizes, tokenizer)
    folder = read_folder(fetch(init_model))
    found = resize_token_embeddings(folder, tokenizer)
    sizes = folder.family.config_from_dict(found.config)
    longest = max(phase.max_length for phase in recipe.phases)
    if longest > sizes.max_position_embeddings:
        raise SettingsError(
            f"the recipe has rows of {longest} places, but {init_model} has only {sizes.max_position_embeddings} positions; shorten the "
            f"phase"
        )
    check_objective(sizes.model_type, recipe.objective)
    return ModelInit(sizes, tokenizer, found, _digest(found.tensors))


def new_model_folder(model: ModelRecipe | None, vocabulary: Path | None) -> ModelFolder:
    """Return a model that is still to be begun, as a folder without a tensor: its sizes, and a vocabulary's files."""
    if model is None or vocabulary is None:
        raise SettingsError(
            "name a model to begin with (--model), or begin a new one: --recipe with a [model], such as transformer, "
            "and a vocabulary (--vocab)"
        )
    sizes = model.config(Tokenizer.load(vocabulary).vocab_size)
    return ModelFolder(vocabulary, family_of(sizes.model_type).config_to_dict(sizes, []), {}, {})


def build(
    model_init: ModelInit, recipe: PretrainRecipe, token_counts: npt.NDArray[np.int64]
) -> tuple[Objective, list[str]]:
    """Return the module to train, and what there is to say about it. `counts` says how often each piece occurs."""
    generator = torch.Generator().manual_seed(recipe.seed)
    encoder = family_of(model_init.config.model_type).build(model_init.config, generator)
    encoder.set_tokenizer(model_init.tokenizer)
    module = OBJECTIVES[recipe.objective](encoder, generator)
    module.encoder.activation_checkpointing = recipe.activation_checkpointing
    notes = []
    if model_init.base_model is None:
        _initialize_weights(module, recipe, token_counts)
    else:
        report = load_into(module, model_init.base_model.tensors, _tensor_names(module))
        if report.missing_keys:
            notes.append(f"the model lacked, so they begin at random: {', '.join(report.missing_keys)}")
        notes += _describe_added_tokens(model_init.base_model)
    freeze(module, recipe.layerwise, model_init.config.num_hidden_layers)
    if recipe.compile:
        for layer in module.encoder.layers:
            layer.compile(dynamic=False)
    return module, notes


def _initialize_weights(module: Objective, recipe: PretrainRecipe, token_counts: npt.NDArray[np.int64]) -> None:
    """Put the first weights where the recipe wants them; all others are drawn."""
    encoder = module.encoder
    if recipe.model.position_init != "normal":
        if not isinstance(encoder, Bert):
            raise SettingsError(
                f"position_start is for BERT; leave it out for the family '{encoder.config.model_type}'"
            )
        init_sinusoidal_positions(encoder)
    if recipe.model.position_init == "neighbours":
        assert isinstance(encoder, Bert)
        init_neighbor_attention(encoder, torch.Generator().manual_seed(recipe.seed))
    if recipe.model.output_bias_init == "counts":
        if not isinstance(module, MlmObjective):
            raise SettingsError(f"bias_start is for masked pieces; leave it out for the objective '{recipe.objective}'")
        # One more of each, so that a piece that does not occur is rare and not impossible.
        shares = torch.from_numpy((token_counts + 1) / (token_counts.sum() + len(token_counts)))
        with torch.no_grad():
            module.mlm_head.bias[: len(token_counts)].copy_(shares.log() - shares.log().mean())


def write_model(
    folder: Path,
    module: Objective,
    tokenizer: Tokenizer,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Write a trained module as a model folder, with other tensors than its own if they are given."""
    sizes = module.encoder.config
    config = family_of(sizes.model_type).config_to_dict(sizes, [architecture_of(sizes, module.kind)])
    write_folder(
        folder,
        config,
        to_hf_names(module.state_dict() if tensors is None else dict(tensors), _tensor_names(module)),
        tokenizer,
        {"reads": module.encoder.attention, **metadata},
    )


def _tensor_names(module: Objective) -> dict[str, tuple[str, ...]]:
    family = family_of(module.encoder.config.model_type)
    heads = {part: family.heads[kind] for part, kind in module.heads.items()}
    return combine_name_tables({"encoder": family.tensor_names(module.encoder.config), **heads})


def _describe_added_tokens(base_model: ResizedModel) -> list[str]:
    if not base_model.new_tokens:
        return ["the vocabulary is the model's own"]
    examples = "; ".join(
        f"'{one.token}' begins as the mean of {' '.join(one.source_tokens) or 'all pieces'}"
        for one in base_model.new_tokens[:3]
    )
    return [f"{len(base_model.new_tokens):,} new pieces: {examples}"]


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    hashed = hashlib.sha256()
    for name in sorted(tensors):
        hashed.update(name.encode())
        hashed.update(tensors[name].detach().contiguous().view(torch.uint8).numpy().data)
    return hashed.hexdigest()[:16]
