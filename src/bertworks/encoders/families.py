"""The encoders by transformers' model_type: a config.json in, sizes, a module and its foreign names out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bertworks.encoders import albert, awd_lstm, bert, elmo, gpt, roberta, static, transformer, xlnet
from bertworks.encoders.stack import BertSizes, Stack, initialise
from bertworks.encoders.tensor_names import NameTable, is_turned, plain
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

    classes: str
    prefix: str
    optional: tuple[str, ...]
    copies: Mapping[str, str]
    heads: Mapping[str, NameTable]
    sizes_of: Callable[[Mapping[str, Any]], BertSizes]
    config_of: Callable[[Any, Sequence[str]], dict[str, Any]]
    build: Callable[[Any, torch.Generator | None], Stack]
    names_of: Callable[[Any], NameTable]
    released: Callable[[str, int], BertSizes]
    moved: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    class_ends: Mapping[str, str] = field(default_factory=dict)
    padding_side: str = "right"
    special_ids: Mapping[str, str] = field(default_factory=lambda: {"pad_token_id": "pad"})
    is_bare: bool = False
    goes_on: bool = False
    rate: float = 3e-5


def family_of(model_type: object) -> Family:
    """Return the family of a config.json's model_type."""
    if not isinstance(model_type, str) or model_type not in ENCODERS:
        known = ", ".join(ENCODERS)
        raise SettingsError(f"there is no encoder for model_type {model_type!r}; choose a model of one of: {known}")
    return ENCODERS[model_type]


def initialise_part(part: torch.nn.Module, sizes: BertSizes, generator: torch.Generator | None) -> None:
    """Draw the weights of a part of an encoder, or of a head on it."""
    initialise(part, sizes.spread, generator)


def shapes_of(family: Family, sizes: BertSizes) -> dict[str, tuple[int, ...]]:
    """Return the shape of each of the encoder's tensors under Hugging Face's name. Nothing is allocated."""
    with torch.device("meta"):
        state = family.build(sizes, None).state_dict()
    shapes: dict[str, tuple[int, ...]] = {}
    for ours, theirs in family.names_of(sizes).items():
        rows, *rest = state[ours].shape
        for name in theirs:
            shape = (rows // len(theirs), *rest)
            shapes[plain(name)] = shape[::-1] if is_turned(name) else shape
    return shapes


# How transformers calls a model with a head of each kind, behind the name of its family.
CLASS_ENDS = {
    "masked": "ForMaskedLM",
    "masked and pair": "ForPreTraining",
    "next": "LMHeadModel",
    "permuted": "LMHeadModel",
    "two-way": "ForTwoWayLM",  # transformers has no ELMo: the name is our own
    "rows": "ForSequenceClassification",
    "places": "ForTokenClassification",
    "choices": "ForMultipleChoice",
    "spans": "ForQuestionAnswering",
    "translations": "MTModel",
    "": "Model",
}


def architecture_of(sizes: BertSizes, head: str = "") -> str:
    """Return transformers' class for an encoder with a head of that kind, or with none."""
    family = family_of(sizes.family)
    return family.classes + family.class_ends.get(head, CLASS_ENDS[head])


ENCODERS: dict[str, Family] = {
    "bert": Family(
        classes="Bert",
        prefix="bert.",
        optional=("bert.pooler.",),
        copies=bert.COPIES,
        heads=bert.HEADS,
        sizes_of=bert.sizes_of,
        config_of=bert.config_of,
        build=bert.Bert,
        names_of=bert.names_of,
        released=BertSizes.released,
    ),
    "roberta": Family(
        classes="Roberta",
        prefix="roberta.",
        optional=("roberta.pooler.",),
        copies=roberta.COPIES,
        heads=roberta.HEADS,
        moved=roberta.MOVED,
        sizes_of=roberta.sizes_of,
        config_of=roberta.config_of,
        build=bert.Bert,
        names_of=roberta.names_of,
        released=roberta.released,
    ),
    "albert": Family(
        classes="Albert",
        prefix="albert.",
        optional=("albert.pooler.",),
        copies=albert.COPIES,
        heads=albert.HEADS,
        sizes_of=albert.sizes_of,
        config_of=albert.config_of,
        build=albert.Albert,
        names_of=albert.names_of,
        released=albert.released,
    ),
    "openai-gpt": Family(
        classes="OpenAIGPT",
        prefix="transformer.",
        optional=(),
        copies=gpt.COPIES,
        heads=gpt.HEADS,
        sizes_of=gpt.sizes_of,
        config_of=gpt.config_of,
        build=gpt.Gpt,
        names_of=gpt.names_of,
        released=gpt.released,
        is_bare=True,
    ),
    "elmo": Family(
        classes="Elmo",
        prefix="elmo.",
        optional=(),
        copies={},
        heads=elmo.HEADS,
        sizes_of=elmo.sizes_of,
        config_of=elmo.config_of,
        build=elmo.Elmo,
        names_of=elmo.names_of,
        released=elmo.released,
    ),
    "marian": Family(
        classes="Marian",
        prefix="model.",
        optional=(),
        copies=transformer.COPIES,
        heads=transformer.HEADS,
        sizes_of=transformer.sizes_of,
        config_of=transformer.config_of,
        build=transformer.Transformer,
        names_of=transformer.names_of,
        released=transformer.released,
        special_ids=transformer.SPECIAL_IDS,
    ),
    "xlnet": Family(
        classes="XLNet",
        prefix="transformer.",
        optional=("transformer.pooler.",),
        copies=xlnet.COPIES,
        heads=xlnet.HEADS,
        moved=xlnet.MOVED,
        sizes_of=xlnet.sizes_of,
        config_of=xlnet.config_of,
        build=xlnet.Xlnet,
        names_of=xlnet.names_of,
        released=xlnet.released,
        class_ends=xlnet.CLASS_ENDS,
        padding_side="left",
        goes_on=True,
    ),
    "awd-lstm": Family(
        classes="AwdLstm",
        prefix="awd_lstm.",
        optional=("awd_lstm.pooler.",),
        copies={},
        heads=awd_lstm.HEADS,
        sizes_of=awd_lstm.sizes_of,
        config_of=awd_lstm.config_of,
        build=awd_lstm.AwdLstm,
        names_of=awd_lstm.names_of,
        released=awd_lstm.released,
        goes_on=True,
        rate=1e-2,
    ),
    "static": Family(
        classes="Static",
        prefix="static.",
        optional=(),
        copies={},
        heads=static.HEADS,
        sizes_of=static.sizes_of,
        config_of=static.config_of,
        build=static.Static,
        names_of=static.names_of,
        released=static.released,
        rate=1e-3,
    ),
}
