"""All families by model_type: a config.json's model_type in, its Family out."""

from __future__ import annotations

import torch

from bertworks.encoders import (
    albert,
    awd_lstm,
    bert,
    camembert,
    deberta_v2,
    distilbert,
    electra,
    elmo,
    ernie,
    gpt,
    modernbert,
    mpnet,
    roberta,
    static,
    transformer,
    xlm_roberta,
    xlnet,
)
from bertworks.encoders.config import EncoderConfig
from bertworks.encoders.family import Family
from bertworks.encoders.tensor_names import is_transposed, strip_mark
from bertworks.errors import SettingsError

FAMILIES = (
    bert.FAMILY,
    roberta.FAMILY,
    xlm_roberta.FAMILY,
    camembert.FAMILY,
    ernie.FAMILY,
    distilbert.FAMILY,
    mpnet.FAMILY,
    electra.FAMILY,
    deberta_v2.FAMILY,
    modernbert.FAMILY,
    albert.FAMILY,
    gpt.FAMILY,
    elmo.FAMILY,
    transformer.FAMILY,
    xlnet.FAMILY,
    awd_lstm.FAMILY,
    static.FAMILY,
)
ENCODERS = {family.model_type: family for family in FAMILIES}

# The end of transformers' class name of a model with a head of each kind.
CLASS_SUFFIXES = {
    "mlm": "ForMaskedLM",
    "pretraining": "ForPreTraining",
    "rtd": "ForPreTraining",
    "causal": "LMHeadModel",
    "permutation": "LMHeadModel",
    "bilm": "ForBiLM",  # transformers has no ELMo; the name is ours
    "sequence": "ForSequenceClassification",
    "tokens": "ForTokenClassification",
    "choices": "ForMultipleChoice",
    "spans": "ForQuestionAnswering",
    "translation": "MTModel",
    "": "Model",
}


def family_of(model_type: object) -> Family:
    """Return the family of a config.json's model_type."""
    if not isinstance(model_type, str) or model_type not in ENCODERS:
        names = ", ".join(ENCODERS)
        raise SettingsError(f"there is no encoder for model_type {model_type!r}; choose a model of one of: {names}")
    return ENCODERS[model_type]


def architecture_of(config: EncoderConfig, head: str = "") -> str:
    """Return the name of transformers' class of an encoder with a head of that kind, or without one."""
    family = family_of(config.model_type)
    return family.class_prefix + family.class_suffixes.get(head, CLASS_SUFFIXES[head])


def shapes_of(family: Family, config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of the encoder under its name in a folder, without allocating it."""
    with torch.device("meta"):
        state = family.build(config, None).state_dict()
    shapes: dict[str, tuple[int, ...]] = {}
    for ours, theirs in family.tensor_names(config).items():
        num_rows, *other_dims = state[ours].shape
        for name in theirs:
            shape = (num_rows // len(theirs), *other_dims)
            shapes[strip_mark(name)] = shape[::-1] if is_transposed(name) else shape
    return shapes
