"""Grow a model with its vocabulary: a ModelFolder and an extended Tokenizer in, config and tensors of that size out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bertworks.errors import FolderError
from bertworks.models.embedding_rows import EmbeddingResize, ResizedTensors, vocab_tensor_names
from bertworks.models.folder import ModelFolder
from bertworks.vocabulary.algorithms import CONTINUATION_PREFIX
from bertworks.vocabulary.tokenizer import Tokenizer

_UNUSED = re.compile(r"\[unused\d+\]")


@dataclass(frozen=True, slots=True)
class NewEmbedding:
    """A new piece: its id, and the old pieces whose mean its row is. With an empty `split` it is that of them all."""

    token: str
    id: int
    source_tokens: tuple[str, ...]


@dataclass(frozen=True)
class ResizedModel:
    """A model as it is in its folder, but with rows for the new pieces. `tensors` are read when they are asked for."""

    config: dict[str, Any]
    tensors: Mapping[str, torch.Tensor]
    new_tokens: tuple[NewEmbedding, ...]


def resize_token_embeddings(folder: ModelFolder, tokenizer: Tokenizer) -> ResizedModel:
    """Return the model with a row for each piece of `tokenizer`, which must extend the folder's own vocabulary.

    A new piece begins as the mean of the pieces that its text was cut into before; everything else stays as it is.
    A table that is longer than its vocabulary (they are often padded) first uses those rows, and keeps the rest.
    """
    old = folder.tokenizer
    difference = _first_difference(old, tokenizer)
    if difference is not None:
        raise FolderError(
            f"{folder.path}: the vocabulary of the corpus does not extend that of the model: {difference}; extend the "
            f"model's with `bertworks vocab extend {folder.path} TEXT --out VOCAB` and prepare the corpus with that"
        )
    added = tuple(
        NewEmbedding(piece, number, _source_tokens(old, piece))
        for number, piece in enumerate(tokenizer.tokens)
        if old.token_to_id(piece) is None
    )
    if not added:
        return ResizedModel(folder.config, folder.tensors, ())
    num_rows = max(folder.encoder_config.vocab_size, tokenizer.vocab_size)
    rows = EmbeddingResize(
        num_rows, old.vocab_size, {one.id: [_token_id(old, piece) for piece in one.source_tokens] for one in added}
    )
    tensors = ResizedTensors(folder.tensors, vocab_tensor_names(folder.family, folder.encoder_config), rows)
    return ResizedModel({**folder.config, "vocab_size": num_rows}, tensors, added)


# ---------------------------------------------------------------- is it an extension?


def _first_difference(old: Tokenizer, new: Tokenizer) -> str | None:
    """Say what a model that knows `old` would misread in text cut by `new`; None if nothing."""
    if old.kind != new.kind:
        return f"it is of kind {new.kind}, the model's of kind {old.kind}"
    if old.cased != new.cased:
        return f"it {_case_rule(new)}, the model's {_case_rule(old)}"
    for number, piece in enumerate(old.tokens):
        there = new.token_to_id(piece)
        if there != number and not (there is None and _UNUSED.fullmatch(piece)):
            place = "is missing there" if there is None else f"has id {there} there"
            return f"piece '{piece}', which has id {number} in the model, {place}"
    if old.kind != "wordpiece" and (old.hash, old.tokens) != (new.hash, new.tokens):
        more = new.tokens[old.vocab_size] if new.vocab_size > old.vocab_size else None
        what = f"piece '{more}' is new" if more is not None else "its merges or scores differ"
        return f"{what}, and only a wordpiece vocabulary can be extended"
    before, after = _rules(old), _rules(new)
    changed = next((name for name in before if before[name] != after[name]), None)
    return None if changed is None else f"its {changed} is {after[changed]}, the model's {before[changed]}"


def _case_rule(tokenizer: Tokenizer) -> str:
    return "tells capital letters from small ones" if tokenizer.cased else "makes all letters small"


def _rules(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what decides the meaning of a piece besides its text.

    The length from which a word is given up does not: Google's files say 200 and Hugging Face's 100 for one model.
    """
    state = json.loads(tokenizer.backend.to_str())
    normaliser = state["normalizer"] or {}
    if normaliser.get("strip_accents", True) is None:  # "as the case": the same rule may also be written out
        normaliser["strip_accents"] = normaliser["lowercase"]
    return {
        "normaliser": normaliser,
        "cutting into words": state["pre_tokenizer"],
        "mark of a continuing piece": state["model"].get("continuing_subword_prefix"),
        "row of special pieces": [tokenizer.tokens[number] for number in tokenizer.specials.ids],
    }


# ---------------------------------------------------------------- what a new piece was before


def _source_tokens(old: Tokenizer, token: str) -> tuple[str, ...]:
    """Return the old pieces of a new piece's text, none of them unknown; empty if nothing of it is known."""
    if token.startswith(CONTINUATION_PREFIX):
        cut = _tokenize_continuation(old, token.removeprefix(CONTINUATION_PREFIX))
    else:
        cut = old.encode(token).tokens[1:-1]
    known = tuple(part for part in cut if part != old.tokens[old.specials.unknown])
    # The row of [UNK] would be a bad start: all words that were unknown would begin as one and the same, and [UNK]
    # means "something rare" rather than this word. Its characters tell more. Where not even they are known, the mean
    # of all rows is at least where pieces lie, as a draw at random is not; what parts such pieces comes from training.
    return known or _character_tokens(old, token)


def _tokenize_continuation(old: Tokenizer, text: str) -> tuple[str, ...]:
    """Cut text that stands inside a word: the longest continuing piece that fits, again and again."""
    found: list[str] = []
    while text:
        parts = (CONTINUATION_PREFIX + text[:end] for end in range(len(text), 0, -1))
        longest = next((part for part in parts if old.token_to_id(part) is not None), None)
        if longest is None:
            return ()
        found.append(longest)
        text = text[len(longest) - len(CONTINUATION_PREFIX) :]
    return tuple(found)


def _character_tokens(old: Tokenizer, token: str) -> tuple[str, ...]:
    """Return the pieces of single characters, each as it stands at its place if there is such a piece."""
    text = token.removeprefix(CONTINUATION_PREFIX)
    found: list[str] = []
    for place, character in enumerate(text):
        begins = place == 0 and text == token
        parts = (character, CONTINUATION_PREFIX + character) if begins else (CONTINUATION_PREFIX + character, character)
        found += [part for part in parts if old.token_to_id(part) is not None][:1]
    return tuple(found)


def _token_id(tokenizer: Tokenizer, token: str) -> int:
    number = tokenizer.token_to_id(token)
    assert number is not None
    return number
