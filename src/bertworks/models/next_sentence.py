"""Next sentence prediction as a classifier of pairs: config and tensors of a BertForNextSentencePrediction in, those of
a BertForSequenceClassification with two classes out.

Both put one linear layer on the pooled output, so that such a model predicts, explains, exports and serves like any
other classifier. Class 0 is that the second sentence follows the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from bertworks.encoders.families import CLASS_SUFFIXES
from bertworks.encoders.family import Family

LABELS = ("is_next", "not_next")
_SUFFIX = "ForNextSentencePrediction"

T = TypeVar("T")


def has_pair_head(config: Mapping[str, Any], family: Family) -> bool:
    """Whether a config.json is that of a model for next sentence prediction alone."""
    is_named = family.class_prefix + _SUFFIX in (config.get("architectures") or [])
    return is_named and {"nsp", "sequence"} <= family.heads.keys()


def as_classifier_config(config: dict[str, Any], family: Family) -> dict[str, Any]:
    """Return the config.json of the classifier; that of any other model is returned as it is."""
    if not has_pair_head(config, family):
        return config
    names = {str(index): label for index, label in enumerate(LABELS)}
    return {**config, "architectures": [family.class_prefix + CLASS_SUFFIXES["sequence"]], "id2label": names}


def as_classifier_tensors(tensors: dict[str, T], config: Mapping[str, Any], family: Family) -> dict[str, T]:
    """Return the tensors of a model with this config.json, the head under the names of the classifier."""
    if not has_pair_head(config, family):
        return tensors
    heads = family.heads
    names = {heads["nsp"][ours][0]: heads["sequence"][ours][0] for ours in heads["nsp"]}
    return {names.get(name, name): values for name, values in tensors.items()}
