"""CamemBERT: RoBERTa's encoder with its own config.json. Its vocabulary is a Unigram of French."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bertworks.encoders.roberta import RobertaConfig, make_family


@dataclass(frozen=True, kw_only=True)
class CamembertConfig(RobertaConfig):
    """The config.json of a CamemBERT."""

    model_type: ClassVar[str] = "camembert"

    vocab_size: int = 32_005


FAMILY = make_family(CamembertConfig, "Camembert")
