"""RoBERTa: BERT's encoder with one segment; its config.json and foreign names.

Positions are counted from behind the number of the padding piece, which is 1 in its own vocabulary.

What makes it another model is how it is trained: byte-level pieces, full blocks, fresh masks, no pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bertworks.encoders import bert
from bertworks.encoders.stack import BertConfig
from bertworks.encoders.tensor_names import expand_weight_and_bias
from bertworks.errors import SettingsError

_FAMILY_CONFIG: dict[str, Any] = {
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "model_type": "roberta",
    "first_position": 2,
}

HEADS = {
    "mlm": {
        **expand_weight_and_bias({"dense": ("lm_head.dense",), "norm": ("lm_head.layer_norm",)}),
        "bias": ("lm_head.bias",),
    },
    "sequence": expand_weight_and_bias({"score": ("classifier.out_proj",)}),
    "tokens": bert.HEADS["tokens"],
    "choices": bert.HEADS["choices"],
    "spans": bert.HEADS["spans"],
}
# Beside a head for whole rows the pooler is called a part of that head.
PREFIX_OVERRIDES = {"sequence": {"roberta.pooler.dense.": "classifier.dense."}}
COPIES = {"lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight", "lm_head.decoder.bias": "lm_head.bias"}


def config_from_preset(name: str, vocab_size: int) -> BertConfig:
    """Return one of the released sizes by name."""
    return replace(BertConfig.from_preset(name, vocab_size), **_FAMILY_CONFIG)


def config_from_dict(config_dict: Mapping[str, Any]) -> BertConfig:
    """Return the sizes that a config.json states; refuse what cannot be obeyed."""
    bert.check_supported(config_dict)
    found = bert.read_config_fields(config_dict, bert.CONFIG_KEYS)
    padding = config_dict.get("pad_token_id", 1)
    if not isinstance(padding, int) or not 0 <= padding < found["max_position_embeddings"] - 1:
        raise SettingsError(f"pad_token_id should be the number of the padding piece, but is {padding!r}; mend it")
    found["max_position_embeddings"] -= padding + 1
    return BertConfig(**found, model_type="roberta", first_position=padding + 1)


def config_to_dict(config: BertConfig, architectures: Sequence[str]) -> dict[str, Any]:
    """Return the config.json of these sizes; `architectures` are transformers' classes, such as RobertaForMaskedLM."""
    own = {"model_type": "roberta", "pad_token_id": config.first_position - 1}
    return {
        **bert.config_to_dict(config, architectures),
        **own,
        "max_position_embeddings": config.max_position_embeddings + config.first_position,
    }


def tensor_names(config: BertConfig) -> dict[str, tuple[str, ...]]:
    """Return the whole table: our name of each tensor -> Hugging Face's, in the order of their rows."""
    return {
        ours: tuple(name.replace("bert.", "roberta.", 1) for name in theirs)
        for ours, theirs in bert.tensor_names(config).items()
    }
