"""Resize token embeddings: a ModelFolder and an extended Tokenizer in, config and tensors of that size out."""

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
    """A new token: its id, and the old tokens whose mean initializes it; without any, the mean of all tokens."""

    token: str
    id: int
    source_tokens: tuple[str, ...]


@dataclass(frozen=True)
class ResizedModel:
    """A model with embeddings for the new tokens. `tensors` are read on access."""

    config: dict[str, Any]
    tensors: Mapping[str, torch.Tensor]
    new_tokens: tuple[NewEmbedding, ...]


def resize_token_embeddings(folder: ModelFolder, tokenizer: Tokenizer) -> ResizedModel:
    """Return the model with an embedding for each token of `tokenizer`, which must extend the model's vocabulary.

    A new token is initialized as the mean of the tokens that its text had before; everything else is unchanged. Padded
    embeddings, with more rows than tokens, use those rows first.
    """
    old = folder.tokenizer
    difference = _first_difference(old, tokenizer)
    if difference is not None:
        raise FolderError(
            f"{folder.path}: the vocabulary of the corpus does not extend that of the model: {difference}; extend the "
            f"model's with `bertworks vocab extend {folder.path} TEXT --output VOCAB` and prepare the corpus with that"
        )
    new_tokens = tuple(
        NewEmbedding(token, token_id, _source_tokens(old, token))
        for token_id, token in enumerate(tokenizer.tokens)
        if old.token_to_id(token) is None
    )
    if not new_tokens:
        return ResizedModel(folder.config, folder.tensors, ())
    num_rows = max(folder.encoder_config.vocab_size, tokenizer.vocab_size)
    source_ids = {new.id: [_token_id(old, token) for token in new.source_tokens] for new in new_tokens}
    resize = EmbeddingResize(num_rows, old.vocab_size, source_ids)
    tensors = ResizedTensors(folder.tensors, vocab_tensor_names(folder.family, folder.encoder_config), resize)
    return ResizedModel({**folder.config, "vocab_size": num_rows}, tensors, new_tokens)


def _first_difference(old: Tokenizer, new: Tokenizer) -> str | None:
    """Describe why a model with the vocabulary `old` cannot use `new`; None if `new` extends it."""
    if old.kind != new.kind:
        return f"its algorithm is {new.kind}, the model's is {old.kind}"
    if old.cased != new.cased:
        return f"it {_case_rule(new)}, the model's {_case_rule(old)}"
    for token_id, token in enumerate(old.tokens):
        new_id = new.token_to_id(token)
        if new_id != token_id and not (new_id is None and _UNUSED.fullmatch(token)):
            difference = "is missing" if new_id is None else f"has id {new_id}"
            return f"token '{token}', which has id {token_id} in the model, {difference} there"
    if old.kind != "wordpiece" and (old.hash, old.tokens) != (new.hash, new.tokens):
        new_token = new.tokens[old.vocab_size] if new.vocab_size > old.vocab_size else None
        difference = f"token '{new_token}' is new" if new_token is not None else "its merges or scores differ"
        return f"{difference}, and only a wordpiece vocabulary can be extended"
    old_rules, new_rules = _rules(old), _rules(new)
    rule = next((name for name in old_rules if old_rules[name] != new_rules[name]), None)
    return None if rule is None else f"its {rule} is {new_rules[rule]}, the model's {old_rules[rule]}"


def _case_rule(tokenizer: Tokenizer) -> str:
    return "is cased" if tokenizer.cased else "is uncased"


def _rules(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the settings of a tokenizer that its tokens depend on.

    The maximal length of a word is not one of them: Google's files say 200 and Hugging Face's 100 for the same model.
    """
    state = json.loads(tokenizer.backend.to_str())
    normalizer = state["normalizer"] or {}
    if normalizer.get("strip_accents", True) is None:  # None means: as `lowercase`
        normalizer["strip_accents"] = normalizer["lowercase"]
    return {
        "normalizer": normalizer,
        "pre-tokenizer": state["pre_tokenizer"],
        "continuation prefix": state["model"].get("continuing_subword_prefix"),
        "list of special tokens": [tokenizer.tokens[token_id] for token_id in tokenizer.specials.ids],
    }


def _source_tokens(old: Tokenizer, token: str) -> tuple[str, ...]:
    """Return the old tokens of a new token's text without [UNK]; empty if not even its characters are known."""
    if token.startswith(CONTINUATION_PREFIX):
        tokens = _tokenize_continuation(old, token.removeprefix(CONTINUATION_PREFIX))
    else:
        tokens = old.encode(token).tokens[1:-1]
    known_tokens = tuple(old_token for old_token in tokens if old_token != old.tokens[old.specials.unknown])
    # The embedding of [UNK] is a bad initialization: all formerly unknown words would start the same, as "something
    # rare". Characters are better. Without known characters, the mean of all embeddings is at least within their
    # distribution, unlike a random vector.
    return known_tokens or _character_tokens(old, token)


def _tokenize_continuation(old: Tokenizer, text: str) -> tuple[str, ...]:
    """Tokenize text inside a word: greedily the longest continuation token."""
    tokens: list[str] = []
    while text:
        candidates = (CONTINUATION_PREFIX + text[:end] for end in range(len(text), 0, -1))
        longest = next((token for token in candidates if old.token_to_id(token) is not None), None)
        if longest is None:
            return ()
        tokens.append(longest)
        text = text[len(longest) - len(CONTINUATION_PREFIX) :]
    return tuple(tokens)


def _character_tokens(old: Tokenizer, token: str) -> tuple[str, ...]:
    """Return the known tokens of single characters, with or without continuation prefix, the fitting form first."""
    text = token.removeprefix(CONTINUATION_PREFIX)
    tokens: list[str] = []
    for index, character in enumerate(text):
        forms = (CONTINUATION_PREFIX + character, character)
        if index == 0 and text == token:
            forms = forms[::-1]
        tokens += [form for form in forms if old.token_to_id(form) is not None][:1]
    return tuple(tokens)


def _token_id(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None
    return token_id
