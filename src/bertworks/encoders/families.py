"""The encoders by transformers' model_type: a config.json in, sizes, a module and its foreign names out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bertworks.encoders import bert
from bertworks.errors import SettingsError

# Our name of each tensor -> Hugging Face's. Where they have several, ours is theirs, one under the other.
NameTable = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Family:
    """What an encoder answers. `Sizes` are its own frozen dataclass; BERT's are `BertSizes`.

    reads         what it can obey of `Batch.reads`
    prefix        what stands before its tensors' names in a file that holds heads as well
    optional      how the names of parts begin that a file may lack: they are then drawn anew
    copies        tensors that others write a second time -> the tensor each of them repeats
    sizes_of      a config.json -> Sizes; refuses what the encoder cannot obey
    config_of     Sizes and transformers' architectures -> a config.json
    build         Sizes and a generator -> the module, its weights drawn
    initialise    draw the weights of a part of that module, given its Sizes and a generator
    names_of      Sizes -> the table of all its tensors' names
    """

    reads: tuple[str, ...]
    prefix: str
    optional: tuple[str, ...]
    copies: Mapping[str, str]
    sizes_of: Callable[[Mapping[str, Any]], bert.BertSizes]
    config_of: Callable[[bert.BertSizes, Sequence[str]], dict[str, Any]]
    build: Callable[[bert.BertSizes, torch.Generator | None], nn.Module]
    initialise: Callable[[nn.Module, bert.BertSizes, torch.Generator | None], None]
    names_of: Callable[[bert.BertSizes], NameTable]


def family_of(model_type: object) -> Family:
    """Return the family of a config.json's model_type."""
    if not isinstance(model_type, str) or model_type not in ENCODERS:
        known = ", ".join(ENCODERS)
        raise SettingsError(f"there is no encoder for model_type {model_type!r}; choose a model of one of: {known}")
    return ENCODERS[model_type]


def shapes_of(family: Family, sizes: bert.BertSizes) -> dict[str, tuple[int, ...]]:
    """Return the shape of each of the encoder's tensors under Hugging Face's name. Nothing is allocated."""
    with torch.device("meta"):
        state = family.build(sizes, None).state_dict()
    shapes: dict[str, tuple[int, ...]] = {}
    for ours, theirs in family.names_of(sizes).items():
        rows, *rest = state[ours].shape
        shapes |= {name: (rows // len(theirs), *rest) for name in theirs}
    return shapes


ENCODERS: dict[str, Family] = {
    "bert": Family(
        reads=bert.Bert.reads,
        prefix="bert.",
        optional=("bert.pooler.",),
        copies={
            "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        sizes_of=bert.sizes_of,
        config_of=bert.config_of,
        build=bert.Bert,
        initialise=lambda part, sizes, generator: bert.initialise(part, sizes.spread, generator),
        names_of=bert.names_of,
    ),
}
