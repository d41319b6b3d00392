"""RoBERTa: BERT's encoder with its own config.json and tensor names.

Positions are counted from the id of the padding token plus one, and there is one token type. The rest is how it is
trained: byte-level BPE, full blocks, dynamic masking, no next sentence prediction.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from bertworks.encoders import bert
from bertworks.encoders.bert import Bert, BertConfig
from bertworks.encoders.config import OPTIONAL_OR_ZERO
from bertworks.encoders.family import Family
from bertworks.encoders.tensor_names import expand_weight_and_bias, replace_prefix
from bertworks.errors import SettingsError


@dataclass(frozen=True, kw_only=True)
class RobertaConfig(BertConfig):
    """The config.json of a RoBERTa: max_position_embeddings counts the unused rows up to that of the padding token."""

    model_type: ClassVar[str] = "roberta"

    max_position_embeddings: int = 514
    type_vocab_size: int = 1
    layer_norm_eps: float = 1e-5
    pad_token_id: int = field(default=1, metadata=OPTIONAL_OR_ZERO)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length < 1:
            raise SettingsError(
                f"pad_token_id should be the id of the padding token, but {self.pad_token_id} leaves none of the "
                f"{self.max_position_embeddings} position embeddings; correct config.json"
            )

    @property
    def first_position(self) -> int:
        return self.pad_token_id + 1

    @property
    def max_length(self) -> int:
        return self.max_position_embeddings - self.first_position

    @property
    def mlm_hidden_act(self) -> str:
        return "gelu"  # in transformers, whatever hidden_act is

    def resized(self, **changes: Any) -> Self:
        if "max_length" in changes:
            changes["max_position_embeddings"] = changes.pop("max_length") + self.first_position
        return super().resized(**changes)

    def with_pad_token_id(self, pad_token_id: int) -> Self:
        return replace(self, pad_token_id=pad_token_id, max_position_embeddings=self.max_length + pad_token_id + 1)


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


def tensor_names(config: RobertaConfig) -> dict[str, tuple[str, ...]]:
    """Return our name of each tensor -> transformers'."""
    return replace_prefix(bert.tensor_names(config), "bert.", "roberta.")


def make_family(config_class: type[RobertaConfig], class_prefix: str) -> Family:
    """Return a family with this encoder and RoBERTa's tensor names."""
    return Family(
        config_class=config_class,
        build=Bert,
        tensor_names=tensor_names,
        class_prefix=class_prefix,
        prefix="roberta.",
        optional_prefixes=("roberta.pooler.",),
        copies={
            "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
        heads=HEADS,
        # With a head for sequences the pooler is part of that head.
        prefix_overrides={"sequence": {"roberta.pooler.dense.": "classifier.dense."}},
        has_token_types=False,
    )


FAMILY = make_family(RobertaConfig, "Roberta")
