"""GPT, the first: a Batch in, an Encoded out. Each piece reads those before it; the last one sums a row up.

N pieces, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from bertworks.encoders import bert
from bertworks.encoders.encoded import Layout
from bertworks.encoders.layers import Layer
from bertworks.encoders.stack import BertSizes, Stack, initialise
from bertworks.encoders.tensor_names import turned, with_ends
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch

_OWN: dict[str, Any] = {"segments": 1, "activation": "gelu_new", "norm_eps": 1e-5, "family": "openai-gpt"}


class Gpt(Stack):
    """The decoder of the first GPT: no segments, no norm before the first layer, no pooler."""

    reads = ("left",)

    def __init__(self, sizes: BertSizes, generator: torch.Generator | None = None) -> None:
        super().__init__(sizes)
        self.pieces = nn.Embedding(sizes.vocabulary, sizes.width)
        self.positions = nn.Embedding(sizes.positions, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes.layer) for _ in range(sizes.num_layers))
        initialise(self, sizes.spread, generator)

    def embed(self, batch: Batch, layout: Layout) -> torch.Tensor:
        """Return (N, D): piece and position."""
        pieces, places, _ = self.looked_up(batch, layout)
        return pieces + self.positions(places)

    def summed(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return them as they are."""
        return vectors


CONFIG_KEYS = {
    "vocabulary": "vocab_size",
    "width": "n_embd",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "positions": "n_positions",
    "dropout": "resid_pdrop",
    "attention_dropout": "attn_pdrop",
    "norm_eps": "layer_norm_epsilon",
    "spread": "initializer_range",
}
# transformers calls the approximation by tanh "gelu" here.
_ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu"}

# No head has a bias: transformers' has none either.
HEADS = {
    "next": {},
    "rows": {"score.weight": ("score.weight",)},
}
COPIES = {"lm_head.weight": "transformer.tokens_embed.weight"}
_LAYER_NAMES = {
    "attention.query_key_value": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "attention_norm": "ln_1",
    "inner": "mlp.c_fc",
    "outer": "mlp.c_proj",
    "norm": "ln_2",
}


def released(name: str, vocabulary: int) -> BertSizes:
    """Return BERT's sizes by name; the paper's GPT is as large as base."""
    return replace(BertSizes.released(name, vocabulary), **_OWN)


def sizes_of(config: Mapping[str, Any]) -> BertSizes:
    """Return the sizes that a config.json states; refuse what cannot be obeyed."""
    found = bert.read_sizes(config, CONFIG_KEYS)
    told = config.get("afn", "gelu")
    if told not in _ACTIVATIONS:
        raise SettingsError(f"there is no activation '{told}'; choose one of: {', '.join(_ACTIVATIONS)}")
    own = {**_OWN, "activation": _ACTIVATIONS[told], "norm_eps": found.pop("norm_eps")}
    return BertSizes(inner=4 * found["width"], **found, **own)


def config_of(sizes: BertSizes, architectures: Sequence[str]) -> dict[str, Any]:
    """Return the config.json of these sizes; `architectures` are transformers' classes."""
    told = {key: getattr(sizes, name) for name, key in CONFIG_KEYS.items()}
    names = {ours: theirs for theirs, ours in _ACTIVATIONS.items() if theirs != "swish"}
    if sizes.activation not in names or sizes.inner != 4 * sizes.width:
        raise SettingsError(f"a GPT is four widths wide inside and has one of: {', '.join(names)}; change the recipe")
    own = {"afn": names[sizes.activation], "embd_pdrop": sizes.dropout}
    return {"model_type": "openai-gpt", "architectures": list(architectures), **told, **own}


def names_of(sizes: BertSizes) -> dict[str, tuple[str, ...]]:
    """Return the whole table: our name of each tensor -> Hugging Face's. Their products have matrices on their side."""
    names: dict[str, tuple[str, ...]] = {
        "pieces.weight": ("transformer.tokens_embed.weight",),
        "positions.weight": ("transformer.positions_embed.weight",),
    }
    for number in range(sizes.num_layers):
        parts = {f"layers.{number}.{our}": (f"transformer.h.{number}.{one}",) for our, one in _LAYER_NAMES.items()}
        for ours, (theirs,) in with_ends(parts).items():
            is_matrix = ours.endswith("weight") and not ours.endswith("norm.weight")
            names[ours] = (turned(theirs) if is_matrix else theirs,)
    return names
