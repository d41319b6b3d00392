"""How words are written: the pieces of a vocabulary in, the symbols of each (V, C) out. A symbol is a byte.

The first symbols stand for no writing: padding, the begin and the end of a word, and the special pieces. What follows
them is the UTF-8 of a word, or the strokes of its characters; UTF-8 has no bytes above 0xF4, and a clean word has no
control characters. Where the strokes come from: strokes.md.

V pieces, C symbols of the longest word.
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
# The special pieces have a symbol each, in the order of `Specials.ids`.
_FIRST_SPECIAL = 3
# Between two characters of a word in strokes, and for a character of which no strokes are known.
_CHARACTER_SEPARATOR, _UNKNOWN = 8, 9
# The first of the strokes; below it ASCII stays what it is.
_FIRST_STROKE = 0x80
_FIRST_CHARACTER = 0x4E00
# By what seed the strokes of characters are exchanged, to see what it is worth that they are the right ones.
_SHUFFLE_SEED = 20_181_116

Symbols = npt.NDArray[np.uint8]


@functools.cache
def load_strokes() -> tuple[Mapping[str, str], str]:
    """Return the strokes of each character, a letter each, and the strokes that the letters a, b, … stand for."""
    packed = resources.files(__package__).joinpath("strokes.txt.gz").read_bytes()
    lines = [line for line in gzip.decompress(packed).decode().splitlines() if not line.startswith("#")]
    return {chr(_FIRST_CHARACTER + number): line for number, line in enumerate(lines[1:])}, lines[0]


@functools.cache
def _shuffle_strokes() -> Mapping[str, str]:
    """Return the same strokes for other characters: each gets those of one drawn at random, and no two the same."""
    table, _ = load_strokes()
    order = np.random.default_rng(_SHUFFLE_SEED).permutation(len(table)).tolist()
    values = list(table.values())
    return {character: values[place] for character, place in zip(table, order, strict=True)}


def _bytes_of(word: str) -> list[int]:
    return [byte for byte in word.encode() if byte > _UNKNOWN]


def _strokes_of(word: str, table: Mapping[str, str]) -> list[int]:
    found: list[int] = []
    for character in word:
        if character in table:
            found += [_FIRST_STROKE + ord(letter) - ord("a") for letter in table[character]]
        else:
            found.append(ord(character) if " " < character < "\x7f" else _UNKNOWN)
        found.append(_CHARACTER_SEPARATOR)
    return found[:-1]


# How a word becomes symbols; "words" are not written at all: a table of words is all there is.
SPELLINGS: dict[str, Callable[[str], list[int]] | None] = {
    "characters": _bytes_of,
    "strokes": lambda word: _strokes_of(word, load_strokes()[0]),
    "shuffled-strokes": lambda word: _strokes_of(word, _shuffle_strokes()),
    "words": None,
}


def check_spelling(name: str) -> None:
    """Refuse a name that is none of SPELLINGS."""
    if name not in SPELLINGS:
        raise SettingsError(f"there is no spelling '{name}'; choose one of: {', '.join(SPELLINGS)}")


def spell_word(word: str, spelling: str, max_length: int) -> Symbols:
    """Return (most,): the symbols of one word between begin and end, cut to what fits and filled up with padding."""
    write = SPELLINGS[spelling]
    assert write is not None
    symbols = [BEGIN, *write(word)[: max_length - 2], END]
    return np.array(symbols + [PADDING] * (max_length - len(symbols)), dtype=np.uint8)


def spell_vocabulary(tokenizer: Tokenizer, spelling: str, max_length: int) -> Symbols:
    """Return (V, most): the symbols of each piece; a special one has a symbol of its own."""
    special = {number: _FIRST_SPECIAL + place for place, number in enumerate(tokenizer.specials.ids)}
    table = np.zeros((tokenizer.vocab_size, max_length), dtype=np.uint8)
    for number, piece in enumerate(tokenizer.tokens):
        if number in special:
            table[number, :3] = BEGIN, special[number], END
        else:
            table[number] = spell_word(piece, spelling, max_length)
    return table
