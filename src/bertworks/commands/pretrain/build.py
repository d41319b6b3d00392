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

from bertworks.commands.pretrain.recipe import ModelRecipe, Recipe
from bertworks.encoders.bert import Bert
from bertworks.encoders.families import architecture_of, family_of
from bertworks.encoders.initialization import begin_with_neighbours, begin_with_waves
from bertworks.encoders.stack import BertSizes
from bertworks.errors import SettingsError
from bertworks.models.folder import ModelFolder, read_folder, write_folder
from bertworks.models.hub import fetch
from bertworks.models.resize import Grown, grown
from bertworks.models.tensor_names import joined, load_into, to_theirs
from bertworks.objectives.mlm import Pretraining
from bertworks.objectives.registry import OBJECTIVES, Objective, check_learns
from bertworks.training.optimizer import freeze
from bertworks.vocabulary.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Start:
    """What a run starts from: sizes alone, and then weights are drawn; or an existing model, grown to the vocabulary.

    `digest` tells one existing model from another; empty without one.
    """

    sizes: BertSizes
    tokenizer: Tokenizer
    grown: Grown | None = None
    digest: str = ""


def start_of(recipe: Recipe, tokenizer: Tokenizer, name: str | None) -> Start:
    """Return the start of a run: the recipe's sizes, or the model of that name (a folder, or one on the hub)."""
    if name is None:
        sizes = recipe.model.sizes(tokenizer.size)
        if sizes.first_position:  # they are counted from behind the number of the padding piece
            sizes = replace(sizes, first_position=tokenizer.specials.pad + 1)
        return Start(sizes, tokenizer)
    folder = read_folder(fetch(name))
    found = grown(folder, tokenizer)
    sizes = folder.family.sizes_of(found.config)
    longest = max(phase.length for phase in recipe.phases)
    if longest > sizes.positions:
        raise SettingsError(
            f"the recipe has rows of {longest} places, but {name} has only {sizes.positions} positions; shorten the "
            f"phase"
        )
    check_learns(sizes.family, recipe.objective)
    return Start(sizes, tokenizer, found, _digest(found.tensors))


def fresh_folder(model: ModelRecipe | None, vocabulary: Path | None) -> ModelFolder:
    """Return a model that is still to be begun, as a folder without a tensor: its sizes, and a vocabulary's files."""
    if model is None or vocabulary is None:
        raise SettingsError(
            "name a model to begin with (--model), or begin a new one: --recipe with a [model], such as transformer, "
            "and a vocabulary (--vocab)"
        )
    sizes = model.sizes(Tokenizer.load(vocabulary).size)
    return ModelFolder(vocabulary, family_of(sizes.family).config_of(sizes, []), {}, {})


def build(start: Start, recipe: Recipe, counts: npt.NDArray[np.int64]) -> tuple[Objective, list[str]]:
    """Return the module to train, and what there is to say about it. `counts` says how often each piece occurs."""
    generator = torch.Generator().manual_seed(recipe.seed)
    encoder = family_of(start.sizes.family).build(start.sizes, generator)
    encoder.meet(start.tokenizer)
    module = OBJECTIVES[recipe.objective](encoder, generator)
    module.encoder.recomputes = recipe.recompute
    notes = []
    if start.grown is None:
        _begin(module, recipe, counts)
    else:
        report = load_into(module, start.grown.tensors, _names(module))
        if report.newly_initialised:
            notes.append(f"the model lacked, so they begin at random: {', '.join(report.newly_initialised)}")
        notes += _told_growth(start.grown)
    freeze(module, recipe.depths, start.sizes.num_layers)
    if recipe.compile:
        for layer in module.encoder.layers:
            layer.compile(dynamic=False)
    return module, notes


def _begin(module: Objective, recipe: Recipe, counts: npt.NDArray[np.int64]) -> None:
    """Put the first weights where the recipe wants them; all others are drawn."""
    encoder = module.encoder
    if recipe.model.position_start != "normal":
        if not isinstance(encoder, Bert):
            raise SettingsError(f"position_start is for BERT; leave it out for the family '{encoder.sizes.family}'")
        begin_with_waves(encoder)
    if recipe.model.position_start == "neighbours":
        assert isinstance(encoder, Bert)
        begin_with_neighbours(encoder, torch.Generator().manual_seed(recipe.seed))
    if recipe.model.bias_start == "counts":
        if not isinstance(module, Pretraining):
            raise SettingsError(f"bias_start is for masked pieces; leave it out for the objective '{recipe.objective}'")
        # One more of each, so that a piece that does not occur is rare and not impossible.
        shares = torch.from_numpy((counts + 1) / (counts.sum() + len(counts)))
        with torch.no_grad():
            module.masked.bias[: len(counts)].copy_(shares.log() - shares.log().mean())


def write_model(
    folder: Path,
    module: Objective,
    tokenizer: Tokenizer,
    told: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Write a trained module as a model folder, with other tensors than its own if they are given."""
    sizes = module.encoder.sizes
    config = family_of(sizes.family).config_of(sizes, [architecture_of(sizes, module.kind)])
    write_folder(
        folder,
        config,
        to_theirs(module.state_dict() if tensors is None else dict(tensors), _names(module)),
        tokenizer,
        {"reads": module.encoder.own_reads, **told},
    )


def _names(module: Objective) -> dict[str, tuple[str, ...]]:
    family = family_of(module.encoder.sizes.family)
    heads = {part: family.heads[kind] for part, kind in module.heads.items()}
    return joined({"encoder": family.names_of(module.encoder.sizes), **heads})


def _told_growth(found: Grown) -> list[str]:
    if not found.added:
        return ["the vocabulary is the model's own"]
    examples = "; ".join(
        f"'{one.piece}' begins as the mean of {' '.join(one.split) or 'all pieces'}" for one in found.added[:3]
    )
    return [f"{len(found.added):,} new pieces: {examples}"]


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    hashed = hashlib.sha256()
    for name in sorted(tensors):
        hashed.update(name.encode())
        hashed.update(tensors[name].detach().contiguous().view(torch.uint8).numpy().data)
    return hashed.hexdigest()[:16]
