"""The special tokens of a vocabulary: a backend and the names of its files in, their ids and their layout out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import tokenizers

from bertworks.errors import InputError
from bertworks.vocabulary.layouts import read_layout
from bertworks.vocabulary.named_tokens import GENERIC_CLASSES, returns_token_types, token_name
from bertworks.vocabulary.special_tokens import BERT, PLAIN, SpecialTokenTemplate, template_for

# The key of each special token in tokenizer_config.json, and its usual names. XLNet's vocabulary also contains <s> and
# </s>, which XLNet does not use.
_DEFAULT_NAMES = {
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]", "<cls>", "<s>"),
    "sep_token": ("[SEP]", "<sep>", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokenIds:
    """The ids of the five special tokens by role ([CLS] is <s> in RoBERTa's vocabulary), and their template."""

    pad: int
    unknown: int
    cls: int
    sep: int
    mask: int
    template: SpecialTokenTemplate = field(default=BERT, compare=False)

    @property
    def ids(self) -> tuple[int, ...]:
        return (self.pad, self.unknown, self.cls, self.sep, self.mask)


def find_specials(backend: tokenizers.Tokenizer, names: Mapping[str, Any], are_required: bool) -> SpecialTokenIds:
    """Find the special tokens by the given names, else by the usual ones: first among the tokens that are registered as
    special, since MPNet's vocabulary contains those of BERT as ordinary tokens.

    The layout of a sequence, and the tokens in it, are those of the post-processor. If it adds none, that of the class
    of transformers does; a class that takes everything from tokenizer.json adds none either.
    """
    layout = read_layout(_post_processor(backend)) if are_required else None
    stated = {**names, **(layout.names if layout is not None else {})}
    registered = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    ids: list[int] = []
    substitute = None if are_required else _unknown_id(backend)
    for key, usual in _DEFAULT_NAMES.items():
        candidates = [token_name(stated, key, ""), *(t for t in usual if t in registered), *usual]
        default = ids[1] if key == "mask_token" else substitute  # only masking needs one: see `Tokenizer.mask_id`
        token_id = next((i for i in map(backend.token_to_id, candidates) if i is not None), default)
        if token_id is None:
            raise InputError(f"the vocabulary has no {' or '.join(usual)} token; BERT needs it, so add it")
        ids.append(token_id)
    pad, unknown, cls_id, sep, mask = ids
    if layout is not None:
        template = layout.template
    elif are_required and names.get("tokenizer_class") in GENERIC_CLASSES:
        template = replace(PLAIN, token_type_ids=(0, int(backend.post_processor is not None), 0))
    else:
        template = template_for(backend.id_to_token(cls_id) or "")
    if not returns_token_types(names):
        template = replace(template, token_type_ids=(0, 0, 0))
    return SpecialTokenIds(pad=pad, unknown=unknown, cls=cls_id, sep=sep, mask=mask, template=template)


def control_ids(backend: tokenizers.Tokenizer, specials: SpecialTokenIds, names: Mapping[str, Any]) -> set[int]:
    """Return the ids of the special tokens of a sequence, with the beginning and end of text that GPT and XLNet have.

    Written in a text, they are ordinary text.
    """
    contents = [token_name(names, key, usual) for key, usual in (("bos_token", "<s>"), ("eos_token", "</s>"))]
    return {*specials.ids, *(token_id for token_id in map(backend.token_to_id, contents) if token_id is not None)}


def _unknown_id(backend: tokenizers.Tokenizer) -> int:
    """Return the id of the unknown token, or of the first token."""
    return next((i for i in map(backend.token_to_id, _DEFAULT_NAMES["unk_token"]) if i is not None), 0)


def _post_processor(backend: tokenizers.Tokenizer) -> dict[str, Any] | None:
    """Return the post-processor as tokenizer.json states it."""
    processor = backend.post_processor
    state: dict[str, Any] | None = None if processor is None else json.loads(processor.__getstate__())
    return state
