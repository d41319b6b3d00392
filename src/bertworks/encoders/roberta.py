"""RoBERTa: BERT's encoder with one segment; its config.json and foreign names.

Positions are counted from behind the number of the padding piece, which is 1 in its own vocabulary.

What makes it another model is how it is trained: byte-level pieces, full blocks, fresh masks, no pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bertworks.encoders import bert
from bertworks.encoders.stack import BertSizes
from bertworks.encoders.tensor_names import with_ends
from bertworks.errors import SettingsError

_OWN: dict[str, Any] = {"segments": 1, "norm_eps": 1e-5, "family": "roberta", "first_position": 2}

HEADS = {
    "masked": {
        **with_ends({"dense": ("lm_head.dense",), "norm": ("lm_head.layer_norm",)}),
        "bias": ("lm_head.bias",),
    },
    "rows": with_ends({"score": ("classifier.out_proj",)}),
    "places": bert.HEADS["places"],
    "choices": bert.HEADS["choices"],
    "spans": bert.HEADS["spans"],
}
# Beside a head for whole rows the pooler is called a part of that head.
MOVED = {"rows": {"roberta.pooler.dense.": "classifier.dense."}}
COPIES = {"lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight", "lm_head.decoder.bias": "lm_head.bias"}


def released(name: str, vocabulary: int) -> BertSizes:
    """Return one of the released sizes by name."""
    return replace(BertSizes.released(name, vocabulary), **_OWN)


def sizes_of(config: Mapping[str, Any]) -> BertSizes:
    """Return the sizes that a config.json states; refuse what cannot be obeyed."""
    bert.check_only(config)
    found = bert.read_sizes(config, bert.CONFIG_KEYS)
    padding = config.get("pad_token_id", 1)
    if not isinstance(padding, int) or not 0 <= padding < found["positions"] - 1:
        raise SettingsError(f"pad_token_id should be the number of the padding piece, but is {padding!r}; mend it")
    found["positions"] -= padding + 1
    return BertSizes(**found, family="roberta", first_position=padding + 1)


def config_of(sizes: BertSizes, architectures: Sequence[str]) -> dict[str, Any]:
    """Return the config.json of these sizes; `architectures` are transformers' classes, such as RobertaForMaskedLM."""
    own = {"model_type": "roberta", "pad_token_id": sizes.first_position - 1}
    return {
        **bert.config_of(sizes, architectures),
        **own,
        "max_position_embeddings": sizes.positions + sizes.first_position,
    }


def names_of(sizes: BertSizes) -> dict[str, tuple[str, ...]]:
    """Return the whole table: our name of each tensor -> Hugging Face's, in the order of their rows."""
    return {
        ours: tuple(name.replace("bert.", "roberta.", 1) for name in theirs)
        for ours, theirs in bert.names_of(sizes).items()
    }
