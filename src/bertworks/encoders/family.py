"""What a family of encoders answers: a config.json in; a config, a module and the tensor names of its folder out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bertworks.encoders.config import EncoderConfig, config_from_dict, config_to_dict
from bertworks.encoders.encoder import Encoder
from bertworks.encoders.tensor_names import NameTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of encoders. The file of an encoder ends with its `FAMILY`.

    config_class             the frozen config, with the keys of config.json
    build                    config and generator -> the encoder with random weights
    tensor_names             config -> our names of all tensors and those in a folder
    class_prefix             the beginning of transformers' class names: "Bert" in BertForMaskedLM
    prefix                   the beginning of the tensor names of the encoder in a folder that also has heads
    optional_prefixes        beginnings of the names of tensors that a folder may lack: they are initialized randomly
    copies                   tensors that transformers stores twice -> the tensor that each of them repeats
    other_prefixes           beginnings of tensor names that transformers also writes -> those that we read and write
    heads                    kind of head -> its tensor names. Kinds: mlm, nsp, causal, permutation, bilm, rtd and
                             generator (objectives);
                             sequence, tokens, spans, choices, translation (tasks)
    prefix_overrides         kind of head -> prefixes of encoder tensors that change in a folder with that head
    class_suffixes           kind of head -> the end of transformers' class name, where it is not the usual one
    padding_side             where transformers' tokenizer must pad
    has_token_types          whether transformers' tokenizer must return token_type_ids
    special_ids              keys of config.json that hold the ids of special tokens -> the name of the token
    can_lack_special_tokens  whether released vocabularies have no special tokens, so that rows are added for them
    can_carry_state          whether it can be trained on sequences that continue those of the step before
    learning_rate            the default peak learning rate of fine-tuning; 0: by the hidden size
    training_command         the command that trains it, where no pretraining objective does
    """

    config_class: type[Any]
    build: Callable[[Any, torch.Generator | None], Encoder]
    tensor_names: Callable[[Any], NameTable]
    class_prefix: str
    prefix: str
    optional_prefixes: tuple[str, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    other_prefixes: Mapping[str, str] = field(default_factory=dict)
    heads: Mapping[str, NameTable]
    prefix_overrides: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    class_suffixes: Mapping[str, str] = field(default_factory=dict)
    padding_side: str = "right"
    has_token_types: bool = True
    special_ids: Mapping[str, str] = field(default_factory=lambda: {"pad_token_id": "pad"})
    can_lack_special_tokens: bool = False
    can_carry_state: bool = False
    learning_rate: float = 0.0
    training_command: str = ""

    @property
    def model_type(self) -> str:
        return str(self.config_class.model_type)

    def config_from_dict(self, config_dict: Mapping[str, Any]) -> EncoderConfig:
        """Return the config that a config.json states; refuse what is not implemented."""
        return config_from_dict(self.config_class, config_dict)

    def config_to_dict(self, config: EncoderConfig, architectures: Sequence[str]) -> dict[str, Any]:
        """Return the config.json; `architectures` are names of transformers' classes."""
        return config_to_dict(config, architectures)

    def config_from_preset(self, name: str, vocab_size: int) -> EncoderConfig:
        """Return the config of a named size."""
        config: EncoderConfig = self.config_class.from_preset(name, vocab_size)
        return config
