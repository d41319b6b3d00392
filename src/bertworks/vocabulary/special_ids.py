"""The special tokens of a vocabulary: a backend and the names of unusual ones in, their ids by role out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tokenizers

from bertworks.errors import InputError
from bertworks.vocabulary.special_tokens import BERT, SpecialTokenTemplate, template_for

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


def find_specials(backend: tokenizers.Tokenizer, names: dict[str, Any], are_required: bool) -> SpecialTokenIds:
    """Find the special tokens by the given names, else by the usual ones: first among the tokens that are registered as
    special, since MPNet's vocabulary contains those of BERT as ordinary tokens."""
    registered = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    ids = []
    substitute = None if are_required else _unknown_id(backend)
    for key, usual in _DEFAULT_NAMES.items():
        name = names.get(key)
        name = name.get("content") if isinstance(name, dict) else name
        candidates = [*([name] if isinstance(name, str) else []), *(t for t in usual if t in registered), *usual]
        token_id = next((i for i in map(backend.token_to_id, candidates) if i is not None), substitute)
        if token_id is None:
            raise InputError(f"the vocabulary has no {' or '.join(usual)} token; BERT needs it, so add it")
        ids.append(token_id)
    pad, unknown, cls_id, sep, mask = ids
    template = template_for(backend.id_to_token(cls_id) or "")
    return SpecialTokenIds(pad=pad, unknown=unknown, cls=cls_id, sep=sep, mask=mask, template=template)


def _unknown_id(backend: tokenizers.Tokenizer) -> int:
    """Return the id of the unknown token, or of the first token."""
    return next((i for i in map(backend.token_to_id, _DEFAULT_NAMES["unk_token"]) if i is not None), 0)


def control_ids_of(backend: tokenizers.Tokenizer, specials: SpecialTokenIds, names: Mapping[str, Any]) -> set[int]:
    """Return the ids of the special tokens of a sequence, with the beginning and end of text that GPT and XLNet have.

    Written in a text, they are ordinary text.
    """
    contents = {"bos_token": "<s>", "eos_token": "</s>"}
    for key in contents:
        name = names.get(key)
        name = name.get("content") if isinstance(name, dict) else name
        contents[key] = name if isinstance(name, str) else contents[key]
    ids = map(backend.token_to_id, contents.values())
    return {*specials.ids, *(token_id for token_id in ids if token_id is not None)}
