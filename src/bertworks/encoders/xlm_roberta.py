"""XLM-RoBERTa: RoBERTa's encoder with its own config.json. Its vocabulary is one Unigram for a hundred languages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bertworks.encoders.roberta import RobertaConfig, make_family


@dataclass(frozen=True, kw_only=True)
class XlmRobertaConfig(RobertaConfig):
    """The config.json of an XLM-RoBERTa."""

    model_type: ClassVar[str] = "xlm-roberta"

    vocab_size: int = 250_002


FAMILY = make_family(XlmRobertaConfig, "XLMRoberta")
