"""BERT: a Batch in, an Encoded out. Two-way Transformer layers over summed piece, position and segment embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import nn

from bertworks.encoders.encoded import BatchLayout
from bertworks.encoders.layers import Layer
from bertworks.encoders.stack import BertConfig, Encoder, initialise
from bertworks.encoders.tensor_names import expand_weight_and_bias
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch


class Bert(Encoder):
    """The encoder of BERT, with its pooler."""

    def __init__(self, config: BertConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        self.token_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(
            config.first_position + config.max_position_embeddings, config.hidden_size
        )
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.layers = nn.ModuleList(Layer(config.layer_config) for _ in range(config.num_hidden_layers))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        initialise(self, config.initializer_range, generator)

    def embed(self, batch: Batch, layout: BatchLayout) -> torch.Tensor:
        """Return (N, D): the three embeddings of each piece, summed and normalised."""
        pieces, places, segments = self.lookup_embeddings(batch, layout)
        return self.norm(pieces + self.position_embeddings(places) + self.token_type_embeddings(segments))


# Hugging Face's key in config.json for each size. Whole numbers have to be there; for the others both sides assume the
# same where a key is left out.
CONFIG_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "hidden_act": "hidden_act",
    "hidden_dropout_prob": "hidden_dropout_prob",
    "attention_probs_dropout_prob": "attention_probs_dropout_prob",
    "layer_norm_eps": "layer_norm_eps",
    "initializer_range": "initializer_range",
}
# Settings that would change the numbers, and the only value of each that is computed here.
SUPPORTED_VALUES: dict[str, Any] = {
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
    "pruned_heads": {},
    "quantization_config": {},
}


def config_from_dict(config_dict: Mapping[str, Any]) -> BertConfig:
    """Return the sizes that a config.json states; refuse what cannot be obeyed."""
    check_supported(config_dict)
    return BertConfig(**read_config_fields(config_dict, CONFIG_KEYS))


def check_supported(config_dict: Mapping[str, Any], supported: Mapping[str, Any] | None = None) -> None:
    """Refuse settings that would change the numbers; `only` are those of a relative beside BERT's."""
    for key, value in {**SUPPORTED_VALUES, **(supported or {})}.items():
        if config_dict.get(key) not in (None, value):
            raise SettingsError(f"{key} is {config_dict[key]!r}, but only {value!r} is supported; choose another model")


def read_config_fields(config_dict: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    """Return the sizes that a config.json states under these keys; whole numbers have to be there."""
    found = {}
    for part in fields(BertConfig):
        if part.name not in keys:
            continue
        key = keys[part.name]
        value = config_dict.get(key, None if isinstance(part.default, int) else part.default)
        if not _is_valid(value, part.default):
            wanted = _EXPECTED[type(part.default)]
            raise SettingsError(f"{key} should be {wanted}, but is {value!r}; bring the model's own config.json")
        found[part.name] = value
    return found


_EXPECTED = {int: "a whole number above 0", float: "a number from 0 to below 1", str: "a name"}


def _is_valid(value: object, default: object) -> bool:
    """Whether a setting is of the kind of its default, and in the range of that kind."""
    if isinstance(value, bool):
        return False
    if isinstance(default, str):
        return isinstance(value, str)
    if isinstance(default, int):
        return isinstance(value, int) and value > 0
    return isinstance(value, int | float) and 0 <= value < 1


def config_to_dict(config: BertConfig, architectures: Sequence[str]) -> dict[str, Any]:
    """Return the config.json of these sizes; `architectures` are transformers' classes, such as BertForPreTraining."""
    told = {key: getattr(config, name) for name, key in CONFIG_KEYS.items()}
    return {"model_type": "bert", "architectures": list(architectures), **told}


# Our name of each tensor and Hugging Face's. Where they have several, ours is theirs, one under the other: their query,
# key and value are three products, ours is one.
NAMES: dict[str, tuple[str, ...]] = {
    "token_embeddings.weight": ("bert.embeddings.word_embeddings.weight",),
    "position_embeddings.weight": ("bert.embeddings.position_embeddings.weight",),
    "token_type_embeddings.weight": ("bert.embeddings.token_type_embeddings.weight",),
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
    "intermediate": ("intermediate.dense",),
    "output": ("output.dense",),
    "norm": ("output.LayerNorm",),
}


def tensor_names(config: BertConfig) -> dict[str, tuple[str, ...]]:
    """Return the whole table: our name of each tensor -> Hugging Face's, in the order of their rows."""
    names = dict(NAMES)
    for number in range(config.num_hidden_layers):
        there = f"bert.encoder.layer.{number}."
        names |= expand_weight_and_bias(
            {f"layers.{number}.{ours}": tuple(there + one for one in theirs) for ours, theirs in LAYER_NAMES.items()}
        )
    return names


# The heads of a BERT. `cls.predictions.decoder` repeats the piece embeddings and the bias; transformers ties it by
# itself, so it is not written.
HEADS = {
    "mlm": {
        **expand_weight_and_bias(
            {"dense": ("cls.predictions.transform.dense",), "norm": ("cls.predictions.transform.LayerNorm",)}
        ),
        "bias": ("cls.predictions.bias",),
    },
    "nsp": expand_weight_and_bias({"score": ("cls.seq_relationship",)}),
    "sequence": expand_weight_and_bias({"score": ("classifier",)}),
    "tokens": expand_weight_and_bias({"score": ("classifier",)}),
    "choices": expand_weight_and_bias({"score": ("classifier",)}),
    "spans": expand_weight_and_bias({"score": ("qa_outputs",)}),
}
COPIES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
