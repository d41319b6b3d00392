"""The files of a vocabulary: vocab.txt, tokenizer.json or tokenizer_config.json in, what stands in them out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers

from bertworks.errors import FolderError, InputError
from bertworks.vocabulary.algorithms import add_missing_special_tokens, ignore_special_tokens_in_text


def read_vocabulary(path: Path) -> list[str]:
    """Return the pieces of a `vocab.txt`, one a line; a piece may hold any character but a newline."""
    try:
        text = path.read_bytes().decode("utf-8")  # not read_text: there a lone "\r" would end a line too
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); is it a vocabulary?"
        ) from None
    pieces = [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]
    seen: dict[str, int] = {}
    for line, piece in enumerate(pieces, 1):
        if not piece:  # one of white space is fine: Chinese BERT has one, which no text ever becomes
            raise InputError(f"{path}, line {line}: the piece is empty; write one piece a line")
        if piece in seen:
            raise InputError(f"{path}, line {line}: piece '{piece}' already stands in line {seen[piece]}; remove one")
        seen[piece] = line
    return pieces


@contextlib.contextmanager
def prefix_errors(path: Path) -> Iterator[None]:
    """Put the file's name before what is wrong with the vocabulary in it."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def read_config(path: Path) -> dict[str, Any]:
    """Return what a tokenizer_config.json says; nothing where there is none."""
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise FolderError(f"{path} is not valid JSON: {error}") from None
    return config if isinstance(config, dict) else {}


def read_backend(path: Path) -> tokenizers.Tokenizer:
    """Return the tokenizer of a tokenizer.json, with the special pieces that GPT was released without."""
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for whatever it cannot parse
        raise InputError(f"{path} is not a tokenizer.json that `tokenizers` can read: {error}") from None
    backend.no_truncation()  # length is for batches to decide
    backend.no_padding()
    return add_missing_special_tokens(ignore_special_tokens_in_text(backend))
