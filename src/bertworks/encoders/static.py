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
from bertworks.encoders.dropout import drop
from bertworks.encoders.encoded import Encoded, Layout
from bertworks.encoders.layers import Seeds
from bertworks.encoders.stack import BertSizes, Stack, initialise
from bertworks.encoders.tensor_names import NameTable
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch

FAMILY = "static"
# The table's name in a folder.
TABLE = f"{FAMILY}.pieces.weight"
# The widths that vectors were published with.
RELEASED = {"tiny": 50, "mini": 100, "small": 200, "base": 300}


class Static(Stack):
    """The encoder: a table."""

    reads = ("both",)

    def __init__(self, sizes: BertSizes, generator: torch.Generator | None = None) -> None:
        super().__init__(sizes)
        self.pieces = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = nn.ModuleList()
        initialise(self, sizes.spread, generator)

    @property
    def attends(self) -> bool:
        return False

    def embed(self, batch: Batch, layout: Layout) -> torch.Tensor:
        """Return (N, D): the vector of each word."""
        return self.looked_up(batch, layout)[0]

    def through(
        self, values: torch.Tensor, layout: Layout, seeds: Seeds | None = None, places: torch.Tensor | None = None
    ) -> Encoded:
        """Return the vectors (N, D) as they are, or those at some places, and the mean of each row."""
        seeds = seeds if self.training else None
        values = drop(values, seeds.of(0) if seeds else None, self.sizes.dropout)
        means = Encoded((values,), None, layout).padded().sum(1) / layout.lengths[:, None]  # (B, D)
        if places is not None:
            values = values[layout.pieces_at(places)]
        return Encoded((values,), means, layout, places=places)


CONFIG_KEYS = {
    "vocabulary": "vocab_size",
    "width": "hidden_size",
    "positions": "max_position_embeddings",
    "dropout": "hidden_dropout_prob",
    "spread": "initializer_range",
}
_OWN: dict[str, Any] = {"num_layers": 0, "num_heads": 1, "inner": 0, "segments": 1, "family": FAMILY}
HEADS: dict[str, NameTable] = {kind: bert.HEADS[kind] for kind in ("rows", "places", "choices", "spans")}


def static_sizes(vocabulary: int, width: int) -> BertSizes:
    """Return the sizes of a table of so many words, special ones counted."""
    return BertSizes(vocabulary, width, **_OWN)


def released(name: str, vocabulary: int) -> BertSizes:
    """Return one of the sizes by name."""
    if name not in RELEASED:
        raise SettingsError(f"there is no size '{name}' of word vectors; choose one of: {', '.join(RELEASED)}")
    return static_sizes(vocabulary, RELEASED[name])


def sizes_of(config: Mapping[str, Any]) -> BertSizes:
    """Return the sizes that a config.json states."""
    found = bert.read_sizes(config, CONFIG_KEYS)
    return BertSizes(**found, **_OWN, attention_dropout=found["dropout"])


def config_of(sizes: BertSizes, architectures: Sequence[str]) -> dict[str, Any]:
    """Return the config.json of these sizes; `architectures` are our own, for transformers has none."""
    told = {key: getattr(sizes, name) for name, key in CONFIG_KEYS.items()}
    return {"model_type": FAMILY, "architectures": list(architectures), **told}


def names_of(sizes: BertSizes) -> dict[str, tuple[str, ...]]:
    """Return our name of the table -> its name in a folder."""
    return {"pieces.weight": (TABLE,)}
