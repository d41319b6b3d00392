"""Extend a vocabulary with the words of a domain: a backend and texts in, a backend with more tokens out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import tokenizers

from bertworks.errors import InputError, SettingsError
from bertworks.text.document import Counts
from bertworks.vocabulary.algorithms import MAX_WORD_LENGTH, detect_kind, ignore_special_tokens_in_text, is_cased
from bertworks.vocabulary.counting import NUM_DISTINCT, count_words

_UNUSED = re.compile(r"\[unused\d+\]")
# Addresses are removed before words are counted: "www" and "com" would be the most valuable words of many domains.
_ADDRESS = re.compile(r"\S*(?:://|www\.|@)\S*")


@dataclass(frozen=True, slots=True)
class NewToken:
    """A new token: its id, the subwords it was tokenized into before, and its number of occurrences.

    The mean of the embeddings of `subwords` is a good initial embedding.
    """

    token: str
    id: int
    subwords: tuple[str, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Extension:
    """The extended backend and the new tokens, the most valuable first; `num_appended` of them have ids at the end."""

    backend: tokenizers.Tokenizer
    new_tokens: tuple[NewToken, ...]
    num_appended: int


def extend(
    backend: tokenizers.Tokenizer,
    texts: Iterable[str],
    num_new_tokens: int,
    min_count: int = 5,
    counts: Counts | None = None,
) -> Extension:
    """Add the `num_new_tokens` whole words that save the most tokens: first in [unused…] entries, then at the end.

    The value of a word is its number of occurrences times the tokens it saves. Only words of letters that occur at
    least `min_count` times are added; numbers and addresses never are. The ids of existing tokens do not change.
    """
    kind = detect_kind(backend)
    if kind.name != "wordpiece":
        raise SettingsError(
            f"extending a {kind.name} vocabulary: whole words can only be added to a wordpiece vocabulary, since the"
            " tokens of other kinds depend on merges or scores; train a new vocabulary on both texts instead"
        )
    if num_new_tokens < 1 or min_count < 1:
        raise SettingsError(
            f"extending a vocabulary: num_new_tokens = {num_new_tokens} and min_count = {min_count} must be 1 or more"
        )
    counts = Counts() if counts is None else counts
    plain = _without_addresses(texts, counts)
    words = count_words(plain, backend, kind.chunks(is_cased(backend)), NUM_DISTINCT, counts)
    if not words:
        raise InputError("extending a vocabulary: the texts contain no words; check the source and its cleaning")
    splits = {
        word: _split_word(backend, word) for word, count in words.items() if count >= min_count and _is_word(word)
    }
    values = {
        word: words[word] * _num_saved_tokens(word, subwords, kind.specials.unknown)
        for word, subwords in splits.items()
    }
    candidates = sorted((word for word in values if values[word] > 0), key=lambda word: (-values[word], word))
    best = candidates[:num_new_tokens]
    counts["tokens added"] += len(best)
    content = json.loads(backend.to_str())
    ids, num_appended = _insert_words(content, best)
    new_tokens = tuple(NewToken(word, ids[word], splits[word], words[word]) for word in best)
    extended = ignore_special_tokens_in_text(tokenizers.Tokenizer.from_str(json.dumps(content)))
    return Extension(extended, new_tokens, num_appended)


def _without_addresses(texts: Iterable[str], counts: Counts) -> Iterator[str]:
    for text in texts:
        plain, num_addresses = _ADDRESS.subn(" ", text)
        if num_addresses:
            counts["addresses left out"] += num_addresses
        yield plain


def _is_word(word: str) -> bool:
    return word.isalpha() and len(word) <= MAX_WORD_LENGTH


def _split_word(backend: tokenizers.Tokenizer, word: str) -> tuple[str, ...]:
    return tuple(token.value for token in backend.model.tokenize(word))


def _num_saved_tokens(word: str, subwords: tuple[str, ...], unknown: str) -> int:
    # [UNK] is a single token but the worst tokenization: it counts as if each character were a token.
    if subwords == (unknown,):
        return max(1, len(word) - 1)
    return len(subwords) - 1


def _insert_words(content: dict[str, Any], words: list[str]) -> tuple[dict[str, int], int]:
    """Add words to the vocabulary of a `tokenizer.json`; return their ids and how many follow the last existing id."""
    vocab: dict[str, int] = content["model"]["vocab"]
    token_to_id = {**vocab, **{added_token["content"]: added_token["id"] for added_token in content["added_tokens"]}}
    unused_entries = sorted((token_id, token) for token, token_id in token_to_id.items() if _UNUSED.fullmatch(token))
    end = max(token_to_id.values()) + 1
    ids = {}
    for index, word in enumerate(words):
        if index < len(unused_entries):
            ids[word], token = unused_entries[index]
            vocab.pop(token, None)
            content["added_tokens"] = [
                added_token for added_token in content["added_tokens"] if added_token["content"] != token
            ]
        else:
            ids[word] = end + index - len(unused_entries)
        vocab[word] = ids[word]
    return ids, max(0, len(words) - len(unused_entries))
