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
from bertworks.encoders.encoded import BatchLayout
from bertworks.encoders.layers import Layer
from bertworks.encoders.stack import BertConfig, Encoder, initialise
from bertworks.encoders.tensor_names import expand_weight_and_bias, mark_transposed
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch

_FAMILY_CONFIG: dict[str, Any] = {
    "type_vocab_size": 1,
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-5,
    "model_type": "openai-gpt",
}


class Gpt(Encoder):
    """The decoder of the first GPT: no segments, no norm before the first layer, no pooler."""

    supported_attention = ("causal",)

    def __init__(self, config: BertConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        self.token_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config.layer_config) for _ in range(config.num_hidden_layers))
        initialise(self, config.initializer_range, generator)

    def embed(self, batch: Batch, layout: BatchLayout) -> torch.Tensor:
        """Return (N, D): piece and position."""
        pieces, places, _ = self.lookup_embeddings(batch, layout)
        return pieces + self.position_embeddings(places)

    def pool(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return them as they are."""
        return vectors


CONFIG_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "hidden_dropout_prob": "resid_pdrop",
    "attention_probs_dropout_prob": "attn_pdrop",
    "layer_norm_eps": "layer_norm_epsilon",
    "initializer_range": "initializer_range",
}
# transformers calls the approximation by tanh "gelu" here.
_ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu"}

# No head has a bias: transformers' has none either.
HEADS = {
    "causal": {},
    "sequence": {"score.weight": ("score.weight",)},
}
COPIES = {"lm_head.weight": "transformer.tokens_embed.weight"}
_LAYER_NAMES = {
    "attention.query_key_value": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "attention_norm": "ln_1",
    "intermediate": "mlp.c_fc",
    "output": "mlp.c_proj",
    "norm": "ln_2",
}


def config_from_preset(name: str, vocab_size: int) -> BertConfig:
    """Return BERT's sizes by name; the paper's GPT is as large as base."""
    return replace(BertConfig.from_preset(name, vocab_size), **_FAMILY_CONFIG)


def config_from_dict(config_dict: Mapping[str, Any]) -> BertConfig:
    """Return the sizes that a config.json states; refuse what cannot be obeyed."""
    found = bert.read_config_fields(config_dict, CONFIG_KEYS)
    told = config_dict.get("afn", "gelu")
    if told not in _ACTIVATIONS:
        raise SettingsError(f"there is no activation '{told}'; choose one of: {', '.join(_ACTIVATIONS)}")
    own = {**_FAMILY_CONFIG, "hidden_act": _ACTIVATIONS[told], "layer_norm_eps": found.pop("layer_norm_eps")}
    return BertConfig(intermediate_size=4 * found["hidden_size"], **found, **own)


def config_to_dict(config: BertConfig, architectures: Sequence[str]) -> dict[str, Any]:
    """Return the config.json of these sizes; `architectures` are transformers' classes."""
    told = {key: getattr(config, name) for name, key in CONFIG_KEYS.items()}
    names = {ours: theirs for theirs, ours in _ACTIVATIONS.items() if theirs != "swish"}
    if config.hidden_act not in names or config.intermediate_size != 4 * config.hidden_size:
        raise SettingsError(f"a GPT is four widths wide inside and has one of: {', '.join(names)}; change the recipe")
    own = {"afn": names[config.hidden_act], "embd_pdrop": config.hidden_dropout_prob}
    return {"model_type": "openai-gpt", "architectures": list(architectures), **told, **own}


def tensor_names(config: BertConfig) -> dict[str, tuple[str, ...]]:
    """Return the whole table: our name of each tensor -> Hugging Face's. Their products have matrices on their side."""
    names: dict[str, tuple[str, ...]] = {
        "token_embeddings.weight": ("transformer.tokens_embed.weight",),
        "position_embeddings.weight": ("transformer.positions_embed.weight",),
    }
    for number in range(config.num_hidden_layers):
        parts = {f"layers.{number}.{our}": (f"transformer.h.{number}.{one}",) for our, one in _LAYER_NAMES.items()}
        for ours, (theirs,) in expand_weight_and_bias(parts).items():
            is_matrix = ours.endswith("weight") and not ours.endswith("norm.weight")
            names[ours] = (mark_transposed(theirs) if is_matrix else theirs,)
    return names
