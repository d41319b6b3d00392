"""BERT: a Batch in, an Encoded out. Two-way Transformer layers over summed piece, position and segment embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import nn

from bertworks.encoders.encoded import Layout
from bertworks.encoders.layers import Layer
from bertworks.encoders.stack import BertSizes, Stack, initialise
from bertworks.encoders.tensor_names import with_ends
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch


class Bert(Stack):
    """The encoder of BERT, with its pooler."""

    def __init__(self, sizes: BertSizes, generator: torch.Generator | None = None) -> None:
        super().__init__(sizes)
        self.pieces = nn.Embedding(sizes.vocabulary, sizes.width)
        self.positions = nn.Embedding(sizes.first_position + sizes.positions, sizes.width)
        self.segments = nn.Embedding(sizes.segments, sizes.width)
        self.norm = nn.LayerNorm(sizes.width, eps=sizes.norm_eps)
        self.layers = nn.ModuleList(Layer(sizes.layer) for _ in range(sizes.num_layers))
        self.pooler = nn.Linear(sizes.width, sizes.width)
        initialise(self, sizes.spread, generator)

    def embed(self, batch: Batch, layout: Layout) -> torch.Tensor:
        """Return (N, D): the three embeddings of each piece, summed and normalised."""
        pieces, places, segments = self.looked_up(batch, layout)
        return self.norm(pieces + self.positions(places) + self.segments(segments))


# Hugging Face's key in config.json for each size. Whole numbers have to be there; for the others both sides assume the
# same where a key is left out.
CONFIG_KEYS = {
    "vocabulary": "vocab_size",
    "width": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "inner": "intermediate_size",
    "positions": "max_position_embeddings",
    "segments": "type_vocab_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "norm_eps": "layer_norm_eps",
    "spread": "initializer_range",
}
# Settings that would change the numbers, and the only value of each that is computed here.
ONLY: dict[str, Any] = {
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
    "pruned_heads": {},
    "quantization_config": {},
}


def sizes_of(config: Mapping[str, Any]) -> BertSizes:
    """Return the sizes that a config.json states; refuse what cannot be obeyed."""
    check_only(config)
    return BertSizes(**read_sizes(config, CONFIG_KEYS))


def check_only(config: Mapping[str, Any], only: Mapping[str, Any] | None = None) -> None:
    """Refuse settings that would change the numbers; `only` are those of a relative beside BERT's."""
    for key, value in {**ONLY, **(only or {})}.items():
        if config.get(key) not in (None, value):
            raise SettingsError(f"{key} is {config[key]!r}, but only {value!r} is supported; choose another model")


def read_sizes(config: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    """Return the sizes that a config.json states under these keys; whole numbers have to be there."""
    found = {}
    for part in fields(BertSizes):
        if part.name not in keys:
            continue
        key = keys[part.name]
        value = config.get(key, None if isinstance(part.default, int) else part.default)
        if not _fits(value, part.default):
            wanted = _WANTED[type(part.default)]
            raise SettingsError(f"{key} should be {wanted}, but is {value!r}; bring the model's own config.json")
        found[part.name] = value
    return found


_WANTED = {int: "a whole number above 0", float: "a number from 0 to below 1", str: "a name"}


def _fits(value: object, default: object) -> bool:
    """Whether a setting is of the kind of its default, and in the range of that kind."""
    if isinstance(value, bool):
        return False
    if isinstance(default, str):
        return isinstance(value, str)
    if isinstance(default, int):
        return isinstance(value, int) and value > 0
    return isinstance(value, int | float) and 0 <= value < 1


def config_of(sizes: BertSizes, architectures: Sequence[str]) -> dict[str, Any]:
    """Return the config.json of these sizes; `architectures` are transformers' classes, such as BertForPreTraining."""
    told = {key: getattr(sizes, name) for name, key in CONFIG_KEYS.items()}
    return {"model_type": "bert", "architectures": list(architectures), **told}


# Our name of each tensor and Hugging Face's. Where they have several, ours is theirs, one under the other: their query,
# key and value are three products, ours is one.
NAMES: dict[str, tuple[str, ...]] = {
    "pieces.weight": ("bert.embeddings.word_embeddings.weight",),
    "positions.weight": ("bert.embeddings.position_embeddings.weight",),
    "segments.weight": ("bert.embeddings.token_type_embeddings.weight",),
    "norm.weight": ("bert.embeddings.LayerNorm.weight",),
    "norm.bias": ("bert.embeddings.LayerNorm.bias",),
    "pooler.weight": ("bert.pooler.dense.weight",),
    "pooler.bias": ("bert.pooler.dense.bias",),
}
# The parts of a layer, each with a weight and a bias: below "layers.N." here, "bert.encoder.layer.N." there.
LAYER_NAMES = {
    "attention.query_key_value": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.out": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "inner": ("intermediate.dense",),
    "outer": ("output.dense",),
    "norm": ("output.LayerNorm",),
}


def names_of(sizes: BertSizes) -> dict[str, tuple[str, ...]]:
    """Return the whole table: our name of each tensor -> Hugging Face's, in the order of their rows."""
    names = dict(NAMES)
    for number in range(sizes.num_layers):
        there = f"bert.encoder.layer.{number}."
        names |= with_ends(
            {f"layers.{number}.{ours}": tuple(there + one for one in theirs) for ours, theirs in LAYER_NAMES.items()}
        )
    return names


# The heads of a BERT. `cls.predictions.decoder` repeats the piece embeddings and the bias; transformers ties it by
# itself, so it is not written.
HEADS = {
    "masked": {
        **with_ends({"dense": ("cls.predictions.transform.dense",), "norm": ("cls.predictions.transform.LayerNorm",)}),
        "bias": ("cls.predictions.bias",),
    },
    "pair": with_ends({"score": ("cls.seq_relationship",)}),
    "rows": with_ends({"score": ("classifier",)}),
    "places": with_ends({"score": ("classifier",)}),
    "choices": with_ends({"score": ("classifier",)}),
    "spans": with_ends({"score": ("qa_outputs",)}),
}
COPIES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
