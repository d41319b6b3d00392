"""The encoders by transformers' model_type: a config.json in, sizes, a module and its foreign names out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bertworks.encoders import albert, awd_lstm, bert, elmo, gpt, roberta, static, transformer, xlnet
from bertworks.encoders.stack import BertConfig, Encoder, initialise
from bertworks.encoders.tensor_names import NameTable, is_transposed, strip_mark
from bertworks.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Family:
    """What an encoder answers. `Sizes` are a frozen dataclass; BERT's and its nearest relatives' are `BertSizes`.

    classes       how the names of transformers' classes begin: "Bert" as in BertForMaskedLM
    prefix        what stands before its tensors' names in a file that holds heads as well
    optional      how the names of parts begin that a file may lack: they are then drawn anew
    copies        tensors that others write a second time -> the tensor each of them repeats
    heads         for each kind of head its tensors' names there; what a table lacks, the head does without. The kinds:
                  masked, pair, next, permuted, two-way (objectives); rows, places, spans, choices, translations (tasks)
    moved         for some kinds of heads, how names of the encoder's own parts begin -> how they begin beside that head
    sizes_of      a config.json -> Sizes; refuses what the encoder cannot obey
    config_of     Sizes and transformers' architectures -> a config.json
    build         Sizes and a generator -> the module, its weights drawn
    names_of      Sizes -> the table of all its tensors' names
    released      the name of a released size and how many pieces there are -> Sizes
    class_ends    for some kinds of heads, how the name of transformers' class ends if not as usual (`CLASS_ENDS`)
    is_bare       whether a vocabulary of the family may come without special pieces, which then get rows of their own
    padding_side  where transformers has to pad rows, for one whose classes look at the last place
    special_ids   keys of a config.json -> which special piece's number each says
    goes_on       whether it can learn from rows that go on behind those of the step before, what was read carried along
    rate          the usual peak rate at which a whole model is fine-tuned
    """

    class_prefix: str
    prefix: str
    optional_prefixes: tuple[str, ...]
    copies: Mapping[str, str]
    heads: Mapping[str, NameTable]
    config_from_dict: Callable[[Mapping[str, Any]], BertConfig]
    config_to_dict: Callable[[Any, Sequence[str]], dict[str, Any]]
    build: Callable[[Any, torch.Generator | None], Encoder]
    tensor_names: Callable[[Any], NameTable]
    config_from_preset: Callable[[str, int], BertConfig]
    prefix_overrides: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    class_suffixes: Mapping[str, str] = field(default_factory=dict)
    padding_side: str = "right"
    special_ids: Mapping[str, str] = field(default_factory=lambda: {"pad_token_id": "pad"})
    can_lack_special_tokens: bool = False
    can_carry_state: bool = False
    learning_rate: float = 3e-5


def family_of(model_type: object) -> Family:
    """Return the family of a config.json's model_type."""
    if not isinstance(model_type, str) or model_type not in ENCODERS:
        known = ", ".join(ENCODERS)
        raise SettingsError(f"there is no encoder for model_type {model_type!r}; choose a model of one of: {known}")
    return ENCODERS[model_type]


def initialise_part(part: torch.nn.Module, config: BertConfig, generator: torch.Generator | None) -> None:
    """Draw the weights of a part of an encoder, or of a head on it."""
    initialise(part, config.initializer_range, generator)


def shapes_of(family: Family, config: BertConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of each of the encoder's tensors under Hugging Face's name. Nothing is allocated."""
    with torch.device("meta"):
        state = family.build(config, None).state_dict()
    shapes: dict[str, tuple[int, ...]] = {}
    for ours, theirs in family.tensor_names(config).items():
        rows, *rest = state[ours].shape
        for name in theirs:
            shape = (rows // len(theirs), *rest)
            shapes[strip_mark(name)] = shape[::-1] if is_transposed(name) else shape
    return shapes


# How transformers calls a model with a head of each kind, behind the name of its family.
CLASS_SUFFIXES = {
    "mlm": "ForMaskedLM",
    "pretraining": "ForPreTraining",
    "causal": "LMHeadModel",
    "permutation": "LMHeadModel",
    "bilm": "ForTwoWayLM",  # transformers has no ELMo: the name is our own
    "sequence": "ForSequenceClassification",
    "tokens": "ForTokenClassification",
    "choices": "ForMultipleChoice",
    "spans": "ForQuestionAnswering",
    "translation": "MTModel",
    "": "Model",
}


def architecture_of(config: BertConfig, head: str = "") -> str:
    """Return transformers' class for an encoder with a head of that kind, or with none."""
    family = family_of(config.model_type)
    return family.class_prefix + family.class_suffixes.get(head, CLASS_SUFFIXES[head])


ENCODERS: dict[str, Family] = {
    "bert": Family(
        class_prefix="Bert",
        prefix="bert.",
        optional_prefixes=("bert.pooler.",),
        copies=bert.COPIES,
        heads=bert.HEADS,
        config_from_dict=bert.config_from_dict,
        config_to_dict=bert.config_to_dict,
        build=bert.Bert,
        tensor_names=bert.tensor_names,
        config_from_preset=BertConfig.from_preset,
    ),
    "roberta": Family(
        class_prefix="Roberta",
        prefix="roberta.",
        optional_prefixes=("roberta.pooler.",),
        copies=roberta.COPIES,
        heads=roberta.HEADS,
        prefix_overrides=roberta.PREFIX_OVERRIDES,
        config_from_dict=roberta.config_from_dict,
        config_to_dict=roberta.config_to_dict,
        build=bert.Bert,
        tensor_names=roberta.tensor_names,
        config_from_preset=roberta.config_from_preset,
    ),
    "albert": Family(
        class_prefix="Albert",
        prefix="albert.",
        optional_prefixes=("albert.pooler.",),
        copies=albert.COPIES,
        heads=albert.HEADS,
        config_from_dict=albert.config_from_dict,
        config_to_dict=albert.config_to_dict,
        build=albert.Albert,
        tensor_names=albert.tensor_names,
        config_from_preset=albert.config_from_preset,
    ),
    "openai-gpt": Family(
        class_prefix="OpenAIGPT",
        prefix="transformer.",
        optional_prefixes=(),
        copies=gpt.COPIES,
        heads=gpt.HEADS,
        config_from_dict=gpt.config_from_dict,
        config_to_dict=gpt.config_to_dict,
        build=gpt.Gpt,
        tensor_names=gpt.tensor_names,
        config_from_preset=gpt.config_from_preset,
        can_lack_special_tokens=True,
    ),
    "elmo": Family(
        class_prefix="Elmo",
        prefix="elmo.",
        optional_prefixes=(),
        copies={},
        heads=elmo.HEADS,
        config_from_dict=elmo.config_from_dict,
        config_to_dict=elmo.config_to_dict,
        build=elmo.Elmo,
        tensor_names=elmo.tensor_names,
        config_from_preset=elmo.config_from_preset,
    ),
    "marian": Family(
        class_prefix="Marian",
        prefix="model.",
        optional_prefixes=(),
        copies=transformer.COPIES,
        heads=transformer.HEADS,
        config_from_dict=transformer.config_from_dict,
        config_to_dict=transformer.config_to_dict,
        build=transformer.Transformer,
        tensor_names=transformer.tensor_names,
        config_from_preset=transformer.config_from_preset,
        special_ids=transformer.SPECIAL_IDS,
    ),
    "xlnet": Family(
        class_prefix="XLNet",
        prefix="transformer.",
        optional_prefixes=("transformer.pooler.",),
        copies=xlnet.COPIES,
        heads=xlnet.HEADS,
        prefix_overrides=xlnet.PREFIX_OVERRIDES,
        config_from_dict=xlnet.config_from_dict,
        config_to_dict=xlnet.config_to_dict,
        build=xlnet.Xlnet,
        tensor_names=xlnet.tensor_names,
        config_from_preset=xlnet.config_from_preset,
        class_suffixes=xlnet.CLASS_SUFFIXES,
        padding_side="left",
        can_carry_state=True,
    ),
    "awd-lstm": Family(
        class_prefix="AwdLstm",
        prefix="awd_lstm.",
        optional_prefixes=("awd_lstm.pooler.",),
        copies={},
        heads=awd_lstm.HEADS,
        config_from_dict=awd_lstm.config_from_dict,
        config_to_dict=awd_lstm.config_to_dict,
        build=awd_lstm.AwdLstm,
        tensor_names=awd_lstm.tensor_names,
        config_from_preset=awd_lstm.config_from_preset,
        can_carry_state=True,
        learning_rate=1e-2,
    ),
    "static": Family(
        class_prefix="Static",
        prefix="static.",
        optional_prefixes=(),
        copies={},
        heads=static.HEADS,
        config_from_dict=static.config_from_dict,
        config_to_dict=static.config_to_dict,
        build=static.Static,
        tensor_names=static.tensor_names,
        config_from_preset=static.config_from_preset,
        learning_rate=1e-3,
    ),
}
