"""The files of a vocabulary: vocab.txt, tokenizer.json or tokenizer_config.json in, their content out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers

from bertworks.errors import FolderError, InputError
from bertworks.reading import parse_json, unreadable_reason
from bertworks.vocabulary.algorithms import ignore_special_tokens_in_text
from bertworks.vocabulary.panics import explain_panics


def read_vocabulary(path: Path) -> list[str]:
    """Return the tokens of a `vocab.txt`, one per line; a token may contain any character but a newline."""
    text = _read_text(path)
    tokens = [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]
    line_numbers: dict[str, int] = {}
    for line_number, token in enumerate(tokens, 1):
        if not token:  # a token of white space is fine: Chinese BERT has one, though no text is tokenized into it
            raise InputError(f"{path}, line {line_number}: the token is empty; write one token per line")
        if token in line_numbers:
            raise InputError(
                f"{path}, line {line_number}: token '{token}' is already on line {line_numbers[token]}; remove one"
            )
        line_numbers[token] = line_number
    return tokens


@contextlib.contextmanager
def prefix_errors(path: Path) -> Iterator[None]:
    """Prefix input errors with the name of the file."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {unreadable_reason(error)}") from None


def _read_text(path: Path) -> str:
    try:
        return _read_bytes(path).decode("utf-8")  # not read_text: there a lone "\r" would end a line too
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); is it a vocabulary?"
        ) from None


def token_ids(backend: tokenizers.Tokenizer) -> dict[str, int]:
    """Return token -> id. The ids must be 0..V-1, since `tokens[id]` is the reverse table."""
    token_to_id: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    if sorted(token_to_id.values()) != list(range(len(token_to_id))):
        raise InputError(
            f"the vocabulary has {len(token_to_id)} tokens but ids up to {max(token_to_id.values())}; number the tokens"
            " from 0 without gaps or repeats"
        )
    return token_to_id


def parse_tokens(text: str) -> Any:
    """Return the value of a JSON text of tokens; a ValueError names half a surrogate pair, which is no character."""
    value = parse_json(text)
    json.dumps(value, ensure_ascii=False).encode()
    return value


def read_config(path: Path) -> dict[str, Any]:
    """Return the content of a tokenizer_config.json; an empty dict if there is none."""
    if not path.is_file():
        return {}
    try:
        config = parse_tokens(_read_text(path))
    except ValueError as error:
        raise FolderError(f"{path} is not valid JSON: {error}") from None
    return config if isinstance(config, dict) else {}


def read_backend(path: Path) -> tokenizers.Tokenizer:
    """Load a tokenizer.json."""
    data = _read_bytes(path)
    try:
        with explain_panics():
            backend = tokenizers.Tokenizer.from_str(data.decode("utf-8"))
    except Exception as error:  # the library raises bare Exception for whatever it cannot parse
        reason = " ".join(str(error).split())
        raise InputError(f"{path} is not a tokenizer.json that `tokenizers` can read: {reason}") from None
    with prefix_errors(path):
        token_ids(backend)  # before the library serializes it, which takes time in proportion to the largest id
    backend.no_truncation()  # truncation and padding are done when batches are made
    backend.no_padding()
    with explain_panics():
        return ignore_special_tokens_in_text(backend)
