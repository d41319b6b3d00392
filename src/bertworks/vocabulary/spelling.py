"""The spelling of words for character-level encoders: the tokens of a vocabulary in, symbols (V, C) out, a byte each.

The first symbols are reserved: padding, the beginning and end of a word, and the special tokens. The others are the
bytes of the UTF-8 encoding of a word, or the strokes of its characters. UTF-8 has no bytes above 0xF4, and a clean word
has no control characters, so the reserved values are free. The source of the stroke data: strokes.md.

V tokens, C symbols of the longest word.
"""

from __future__ import annotations

import functools
import gzip
from collections.abc import Callable, Mapping
from importlib import resources

import numpy as np
import numpy.typing as npt

from bertworks.errors import SettingsError
from bertworks.vocabulary.tokenizer import Tokenizer

NUM_SYMBOLS = 256
PADDING, BEGIN, END = 0, 1, 2
# Each special token has a symbol, in the order of `SpecialTokenIds.ids`.
_FIRST_SPECIAL = 3
# The symbol between the strokes of two characters, and that of a character without stroke data.
_CHARACTER_SEPARATOR, _UNKNOWN = 8, 9
# The symbol of the first stroke; ASCII characters keep their codes below it.
_FIRST_STROKE = 0x80
_FIRST_CHARACTER = 0x4E00
# The seed of "shuffled-strokes", the ablation in which each character has the strokes of another one.
_SHUFFLE_SEED = 20_181_116

Symbols = npt.NDArray[np.uint8]


@functools.cache
def load_strokes() -> tuple[Mapping[str, str], str]:
    """Return character -> strokes, one letter per stroke, and the strokes that the letters a, b, … stand for."""
    compressed = resources.files(__package__).joinpath("strokes.txt.gz").read_bytes()
    lines = [line for line in gzip.decompress(compressed).decode().splitlines() if not line.startswith("#")]
    return {chr(_FIRST_CHARACTER + index): line for index, line in enumerate(lines[1:])}, lines[0]


@functools.cache
def _shuffle_strokes() -> Mapping[str, str]:
    """Return a random permutation of the strokes among the characters."""
    table, _ = load_strokes()
    order = np.random.default_rng(_SHUFFLE_SEED).permutation(len(table)).tolist()
    values = list(table.values())
    return {character: values[index] for character, index in zip(table, order, strict=True)}


def _bytes_of(word: str) -> list[int]:
    return [byte for byte in word.encode() if byte > _UNKNOWN]


def _strokes_of(word: str, table: Mapping[str, str]) -> list[int]:
    symbols: list[int] = []
    for character in word:
        if character in table:
            symbols += [_FIRST_STROKE + ord(letter) - ord("a") for letter in table[character]]
        else:
            symbols.append(ord(character) if " " < character < "\x7f" else _UNKNOWN)
        symbols.append(_CHARACTER_SEPARATOR)
    return symbols[:-1]


# Word -> symbols, by name; with "words" there are no symbols, only word embeddings.
SPELLINGS: dict[str, Callable[[str], list[int]] | None] = {
    "characters": _bytes_of,
    "strokes": lambda word: _strokes_of(word, load_strokes()[0]),
    "shuffled-strokes": lambda word: _strokes_of(word, _shuffle_strokes()),
    "words": None,
}


def check_spelling(name: str) -> None:
    """Raise a SettingsError unless `name` is a key of SPELLINGS."""
    if name not in SPELLINGS:
        raise SettingsError(f"there is no spelling '{name}'; choose one of: {', '.join(SPELLINGS)}")


def spell_word(word: str, spelling: str, max_length: int) -> Symbols:
    """Return (max_length,): the symbols of one word between BEGIN and END, truncated or padded."""
    spell = SPELLINGS[spelling]
    assert spell is not None
    symbols = [BEGIN, *spell(word)[: max_length - 2], END]
    return np.array(symbols + [PADDING] * (max_length - len(symbols)), dtype=np.uint8)


def spell_vocabulary(tokenizer: Tokenizer, spelling: str, max_length: int) -> Symbols:
    """Return (V, max_length): the symbols of each token; a special token has a symbol of its own."""
    special_symbols = {token_id: _FIRST_SPECIAL + index for index, token_id in enumerate(tokenizer.specials.ids)}
    table = np.zeros((tokenizer.vocab_size, max_length), dtype=np.uint8)
    for token_id, token in enumerate(tokenizer.tokens):
        if token_id in special_symbols:
            table[token_id, :3] = BEGIN, special_symbols[token_id], END
        else:
            table[token_id] = spell_word(token, spelling, max_length)
    return table
