"""Inputs of a tokenizer: texts, pairs or token ids in memory in, checked lists out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

from bertworks.errors import InputError, show_value


def check_texts(texts: Sequence[Any]) -> Sequence[str]:
    """Return texts; raise InputError if one of them is something else."""
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"text {index} is {show_value(text)}, not a text; give text")
    return texts


def text_and_pair(value: Any) -> Sequence[str]:
    """Return an input as one text or two."""
    texts = value if isinstance(value, tuple) else (value,)
    if len(texts) not in (1, 2):
        raise InputError(f"the input is {show_value(value)}; give a text or a pair of texts")
    return check_texts(texts)


def several_texts(texts: Any) -> list[Any]:
    """Return several texts or pairs as a list; a single text is refused, since its characters are texts too."""
    if isinstance(texts, str):
        raise InputError("a single text was given instead of several; put it into a list: [text]")
    if not isinstance(texts, Iterable) or isinstance(texts, bytes):
        raise InputError(f"the input is {show_value(texts)}; give a text or a list of texts")
    return list(texts)


def check_token_ids(input_ids: Any) -> list[int]:
    """Return token ids as a list; an array or a tensor has one dimension."""
    ids = input_ids.tolist() if hasattr(input_ids, "tolist") else input_ids
    if isinstance(ids, Iterable) and not isinstance(ids, str | bytes):
        ids = list(ids)
        if all(isinstance(token_id, Integral) for token_id in ids):
            return [int(token_id) for token_id in ids]
    raise InputError(f"the token ids are {show_value(input_ids)}; give a list of integers: those of one text")
