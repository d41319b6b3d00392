"""The layout of a sequence in a tokenizer.json: its post-processor in, a template of special tokens out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from bertworks.errors import InputError
from bertworks.vocabulary.special_tokens import BERT, ROBERTA, SpecialTokenTemplate

# An element of a template: the name of a special token, "" for a text; and its token type.
Element = tuple[str, int]
_FIXED = {"BertProcessing": BERT, "RobertaProcessing": ROBERTA}
_REFUSAL = (
    "its post-processor puts special tokens around texts in a way that is not supported, so the inputs of the model "
    "would be wrong; it may put one token before the texts, one between and after them, and one at the end"
)


@dataclass(frozen=True, slots=True)
class SequenceLayout:
    """A template, and the tokens in it by their keys in tokenizer_config.json: cls_token and sep_token."""

    template: SpecialTokenTemplate
    names: dict[str, str]


def read_layout(post_processor: Mapping[str, Any] | None) -> SequenceLayout | None:
    """Return the layout that a post-processor states; None if it adds no special tokens by itself.

    InputError for a template that `SpecialTokenTemplate` cannot express.
    """
    kind = None if post_processor is None else post_processor["type"]
    if post_processor is None or kind == "ByteLevel":
        return None
    if kind == "Sequence":
        layouts = [layout for part in post_processor["processors"] if (layout := read_layout(part)) is not None]
        if len(layouts) > 1:
            raise InputError(_REFUSAL)
        return layouts[0] if layouts else None
    if kind in _FIXED:
        names = {"cls_token": str(post_processor["cls"][0]), "sep_token": str(post_processor["sep"][0])}
        return SequenceLayout(_FIXED[kind], names)
    return _read_template(post_processor)


def _read_template(post_processor: Mapping[str, Any]) -> SequenceLayout:
    single, pair = ([_read_element(piece) for piece in post_processor[key]] for key in ("single", "pair"))
    names = {key: token["tokens"] for key, token in post_processor["special_tokens"].items()}
    texts = [index for index, (name, _) in enumerate(pair) if not name]
    used = {name for name, _ in pair if name}
    if len(texts) != 2 or not used <= names.keys() or any(len(tokens) != 1 for tokens in names.values()):
        raise InputError(_REFUSAL)
    first, second = texts
    before, between, after = pair[:first], pair[first + 1 : second], pair[second + 1 :]
    runs = [(name, len(list(run))) for name, run in groupby(name for name, _ in after)]
    separator = between[0][0] if between else runs[0][0] if runs and (len(runs) > 1 or before) else ""
    cls_token = before[0][0] if before else runs[-1][0] if runs and runs[-1][0] != separator else ""
    num_after = runs[-1][1] if runs and runs[-1][0] == cls_token else 0
    template = SpecialTokenTemplate(
        len(before),
        len(between),
        num_after,
        (pair[first][1], pair[second][1], after[-1][1] if num_after else 0),
        num_final=len(after) - num_after,
    )
    if [_expand(template, cls_token, separator, num_texts) for num_texts in (1, 2)] != [single, pair]:
        raise InputError(_REFUSAL)
    tokens = {"cls_token": cls_token, "sep_token": separator}
    return SequenceLayout(template, {key: str(names[name][0]) for key, name in tokens.items() if name})


def _read_element(piece: Mapping[str, Any]) -> Element:
    if "Sequence" in piece:
        return "", int(piece["Sequence"]["type_id"])
    return str(piece["SpecialToken"]["id"]), int(piece["SpecialToken"]["type_id"])


def _expand(template: SpecialTokenTemplate, cls_token: str, separator: str, num_texts: int) -> Sequence[Element]:
    """Return the elements of a sequence of one or two texts that follow from a template."""
    elements = [(cls_token, 0)] * template.num_before
    for index in range(num_texts):
        token_type = template.token_type_ids[index]
        elements += [("", token_type), *[(separator, token_type)] * template.num_separators(index, num_texts)]
    return elements + [(cls_token, template.token_type_ids[2])] * template.num_after
