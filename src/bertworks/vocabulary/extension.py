"""Extend a vocabulary with the words of a domain: a backend and texts in, a backend with more pieces out."""

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
# Addresses are cut out before words are counted: "www" and "com" would be the most valuable words of many a domain.
_ADDRESS = re.compile(r"\S*(?:://|www\.|@)\S*")


@dataclass(frozen=True, slots=True)
class NewToken:
    """A new piece: its id, the pieces its word was split into before, and how often the word occurs.

    The mean of the embeddings of `split` is a good first embedding for the piece.
    """

    token: str
    id: int
    subwords: tuple[str, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Extension:
    """The extended backend and what was added, the most valuable first; `num_appended` ids are new at the end."""

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
    """Add the `num_new` whole words that save most pieces: first into free slots ([unused…]), then behind the last id.

    The value of a word is how often it occurs times the pieces it saves. Words are letters only, at least `min_count`
    times in the texts; numbers and addresses are never added. Ids of old pieces do not change.
    """
    kind = detect_kind(backend)
    if kind.name != "wordpiece":
        raise SettingsError(
            f"extending a {kind.name} vocabulary: whole words can only be added to a wordpiece vocabulary, since the"
            " other kinds reach a piece through merges or scores; train a new vocabulary on both texts instead"
        )
    if num_new_tokens < 1 or min_count < 1:
        raise SettingsError(
            f"extending a vocabulary: num_new = {num_new_tokens} and min_count = {min_count} must be 1 or more"
        )
    counts = Counts() if counts is None else counts
    plain = _without_addresses(texts, counts)
    words = count_words(plain, backend, kind.chunks(is_cased(backend)), NUM_DISTINCT, counts)
    if not words:
        raise InputError("extending a vocabulary: the texts hold not a single word; check the source and its cleaning")
    splits = {
        word: _split_word(backend, word) for word, count in words.items() if count >= min_count and _is_word(word)
    }
    values = {
        word: words[word] * _num_saved_tokens(word, split, kind.specials.unknown) for word, split in splits.items()
    }
    best = sorted((word for word in values if values[word] > 0), key=lambda word: (-values[word], word))[
        :num_new_tokens
    ]
    counts["pieces added"] += len(best)
    content = json.loads(backend.to_str())
    ids, num_appended = _insert_words(content, best)
    added = tuple(NewToken(word, ids[word], splits[word], words[word]) for word in best)
    return Extension(
        ignore_special_tokens_in_text(tokenizers.Tokenizer.from_str(json.dumps(content))), added, num_appended
    )


def _without_addresses(texts: Iterable[str], counts: Counts) -> Iterator[str]:
    for text in texts:
        plain, number = _ADDRESS.subn(" ", text)
        if number:
            counts["addresses passed over"] += number
        yield plain


def _is_word(word: str) -> bool:
    return word.isalpha() and len(word) <= MAX_WORD_LENGTH


def _split_word(backend: tokenizers.Tokenizer, word: str) -> tuple[str, ...]:
    return tuple(token.value for token in backend.model.tokenize(word))


def _num_saved_tokens(word: str, subwords: tuple[str, ...], unknown: str) -> int:
    # An unknown word is one piece, yet the worst split of all: it counts as if each character were a piece.
    if subwords == (unknown,):
        return max(1, len(word) - 1)
    return len(subwords) - 1


def _insert_words(content: dict[str, Any], words: list[str]) -> tuple[dict[str, int], int]:
    """Write the words into the vocabulary of a `tokenizer.json`; their ids, and how many came behind the last one."""
    vocab: dict[str, int] = content["model"]["vocab"]
    taken = {**vocab, **{added["content"]: added["id"] for added in content["added_tokens"]}}
    free = sorted((number, piece) for piece, number in taken.items() if _UNUSED.fullmatch(piece))
    end = max(taken.values()) + 1
    ids = {}
    for place, word in enumerate(words):
        if place < len(free):
            ids[word], slot = free[place]
            vocab.pop(slot, None)
            content["added_tokens"] = [added for added in content["added_tokens"] if added["content"] != slot]
        else:
            ids[word] = end + place - len(free)
        vocab[word] = ids[word]
    return ids, max(0, len(words) - len(free))
