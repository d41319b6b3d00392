"""Static word vectors as an encoder: a Batch of words in, an Encoded out: one table, and nothing above it.

A word has the same vector wherever it stands; the mean of a row sums it up. So Word2Vec and GloVe go through the rooms
of all others, and what context adds can be told. The one tensor has a name of our own, for transformers has no such
model.

B rows, N words, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from bertworks.encoders import bert
from bertworks.encoders.dropout import dropout
from bertworks.encoders.encoded import BatchLayout, Encoded
from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.stack import BertConfig, Encoder, initialise
from bertworks.encoders.tensor_names import NameTable
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch

FAMILY = "static"
# The table's name in a folder.
TABLE = f"{FAMILY}.token_embeddings.weight"
# The widths that vectors were published with.
PRESETS = {"tiny": 50, "mini": 100, "small": 200, "base": 300}


class Static(Encoder):
    """The encoder: a table."""

    supported_attention = ("bidirectional",)

    def __init__(self, config: BertConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        self.token_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList()
        initialise(self, config.initializer_range, generator)

    @property
    def has_attention(self) -> bool:
        return False

    def embed(self, batch: Batch, layout: BatchLayout) -> torch.Tensor:
        """Return (N, D): the vector of each word."""
        return self.lookup_embeddings(batch, layout)[0]

    def forward_layers(
        self,
        hidden_states: torch.Tensor,
        layout: BatchLayout,
        seeds: DropoutSeeds | None = None,
        positions: torch.Tensor | None = None,
    ) -> Encoded:
        """Return the vectors (N, D) as they are, or those at some places, and the mean of each row."""
        seeds = seeds if self.training else None
        hidden_states = dropout(hidden_states, seeds.seed_for(0) if seeds else None, self.config.hidden_dropout_prob)
        means = Encoded((hidden_states,), None, layout).to_padded().sum(1) / layout.lengths[:, None]  # (B, D)
        if positions is not None:
            hidden_states = hidden_states[layout.token_indices(positions)]
        return Encoded((hidden_states,), means, layout, positions=positions)


CONFIG_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "max_position_embeddings": "max_position_embeddings",
    "hidden_dropout_prob": "hidden_dropout_prob",
    "initializer_range": "initializer_range",
}
_FAMILY_CONFIG: dict[str, Any] = {
    "num_hidden_layers": 0,
    "num_attention_heads": 1,
    "intermediate_size": 0,
    "type_vocab_size": 1,
    "model_type": FAMILY,
}
HEADS: dict[str, NameTable] = {kind: bert.HEADS[kind] for kind in ("sequence", "tokens", "choices", "spans")}


def static_config(vocab_size: int, hidden_size: int) -> BertConfig:
    """Return the sizes of a table of so many words, special ones counted."""
    return BertConfig(vocab_size, hidden_size, **_FAMILY_CONFIG)


def config_from_preset(name: str, vocab_size: int) -> BertConfig:
    """Return one of the sizes by name."""
    if name not in PRESETS:
        raise SettingsError(f"there is no size '{name}' of word vectors; choose one of: {', '.join(PRESETS)}")
    return static_config(vocab_size, PRESETS[name])


def config_from_dict(config_dict: Mapping[str, Any]) -> BertConfig:
    """Return the sizes that a config.json states."""
    found = bert.read_config_fields(config_dict, CONFIG_KEYS)
    return BertConfig(**found, **_FAMILY_CONFIG, attention_probs_dropout_prob=found["hidden_dropout_prob"])


def config_to_dict(config: BertConfig, architectures: Sequence[str]) -> dict[str, Any]:
    """Return the config.json of these sizes; `architectures` are our own, for transformers has none."""
    told = {key: getattr(config, name) for name, key in CONFIG_KEYS.items()}
    return {"model_type": FAMILY, "architectures": list(architectures), **told}


def tensor_names(config: BertConfig) -> dict[str, tuple[str, ...]]:
    """Return our name of the table -> its name in a folder."""
    return {"token_embeddings.weight": (TABLE,)}
