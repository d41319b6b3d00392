"""ALBERT: a Batch in, an Encoded out. Narrow embeddings that are widened once, and one layer that is passed many times.

N pieces, E width of embeddings, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bertworks.encoders import bert
from bertworks.encoders.encoded import BatchLayout
from bertworks.encoders.layers import Layer
from bertworks.encoders.stack import BertConfig, Encoder, initialise
from bertworks.encoders.tensor_names import expand_weight_and_bias
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch

# Layers, width, heads and width of embeddings. The released ones are base and above; the small ones are ours.
PRESETS = {
    "tiny": (2, 128, 2, 64),
    "mini": (4, 256, 4, 128),
    "small": (4, 512, 8, 128),
    "medium": (8, 512, 8, 128),
    "base": (12, 768, 12, 128),
    "large": (24, 1024, 16, 128),
    "xlarge": (24, 2048, 16, 128),
    "xxlarge": (12, 4096, 64, 128),
}


@dataclass(frozen=True, slots=True)
class AlbertConfig(BertConfig):
    """What an ALBERT is made of."""

    embedding_size: int = 128

    @property
    def token_embedding_size(self) -> int:
        return self.embedding_size


class Albert(Encoder):
    """The encoder of ALBERT, with its pooler."""

    config: AlbertConfig

    def __init__(self, config: AlbertConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        self.token_embeddings = nn.Embedding(config.vocab_size, config.embedding_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.embedding_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.embedding_size)
        self.norm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.embedding_projection = nn.Linear(config.embedding_size, config.hidden_size)
        self.layers = nn.ModuleList([Layer(config.layer_config)])
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        initialise(self, config.initializer_range, generator)

    @property
    def layer_sequence(self) -> Sequence[Layer]:
        """The one layer, as often as the model is deep."""
        return list(self.layers) * self.config.num_hidden_layers  # type: ignore[return-value]

    def embed(self, batch: Batch, layout: BatchLayout) -> torch.Tensor:
        """Return (N, D): the three embeddings of each piece (N, E), summed, normalised and widened."""
        pieces, places, segments = self.lookup_embeddings(batch, layout)
        return self.embedding_projection(
            self.norm(pieces + self.position_embeddings(places) + self.token_type_embeddings(segments))
        )


# Settings that would change the numbers, and the only value of each that is computed here.
SUPPORTED_VALUES = {"num_hidden_groups": 1, "inner_group_num": 1}

HEADS = {
    "mlm": {
        **expand_weight_and_bias({"dense": ("predictions.dense",), "norm": ("predictions.LayerNorm",)}),
        "bias": ("predictions.bias",),
    },
    "nsp": expand_weight_and_bias({"score": ("sop_classifier.classifier",)}),
    "sequence": bert.HEADS["sequence"],
    "tokens": bert.HEADS["tokens"],
    "choices": bert.HEADS["choices"],
    "spans": bert.HEADS["spans"],
}
COPIES = {
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
}
_LAYER_PREFIX = "albert.encoder.albert_layer_groups.0.albert_layers.0."
_LAYER_NAMES = {
    "attention.query_key_value": ("attention.query", "attention.key", "attention.value"),
    "attention.out": ("attention.dense",),
    "attention_norm": ("attention.LayerNorm",),
    "intermediate": ("ffn",),
    "output": ("ffn_output",),
    "norm": ("full_layer_layer_norm",),
}


def config_from_preset(name: str, vocab_size: int) -> AlbertConfig:
    """Return one of the released sizes, or a small one of ours, by name. ALBERT drops nothing."""
    if name not in PRESETS:
        raise SettingsError(f"there is no size '{name}'; choose one of: {', '.join(PRESETS)}")
    num_layers, width, num_heads, embedding_width = PRESETS[name]
    return AlbertConfig(
        vocab_size, width, num_layers, num_heads, 4 * width, hidden_act="gelu_new", model_type="albert",
        embedding_size=embedding_width,
    )  # fmt: skip


def config_from_dict(config_dict: Mapping[str, Any]) -> AlbertConfig:
    """Return the sizes that a config.json states; refuse what cannot be obeyed."""
    bert.check_supported(config_dict, SUPPORTED_VALUES)
    found = bert.read_config_fields(config_dict, bert.CONFIG_KEYS)
    width = config_dict.get("embedding_size", 128)
    if not isinstance(width, int) or width < 1:
        raise SettingsError(f"embedding_size should be a whole number above 0, but is {width!r}")
    return AlbertConfig(**found, model_type="albert", embedding_size=width)


def config_to_dict(config: AlbertConfig, architectures: Sequence[str]) -> dict[str, Any]:
    """Return the config.json of these sizes; `architectures` are transformers' classes."""
    own = {"model_type": "albert", "embedding_size": config.embedding_size, "num_hidden_groups": 1}
    return {**bert.config_to_dict(config, architectures), **own, "inner_group_num": 1}


def tensor_names(config: AlbertConfig) -> dict[str, tuple[str, ...]]:
    """Return the whole table: our name of each tensor -> Hugging Face's, in the order of their rows."""
    tables = {
        ours: tuple(name.replace("bert.", "albert.", 1) for name in theirs)
        for ours, theirs in bert.NAMES.items()
        if not ours.startswith("pooler.")
    }
    inside = {
        f"layers.0.{ours}": tuple(_LAYER_PREFIX + name for name in theirs) for ours, theirs in _LAYER_NAMES.items()
    }
    ends = {"embedding_projection": ("albert.encoder.embedding_hidden_mapping_in",), "pooler": ("albert.pooler",)}
    return {**tables, **expand_weight_and_bias(ends), **expand_weight_and_bias(inside)}
