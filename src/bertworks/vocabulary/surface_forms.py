"""How a piece is written out: a vocabulary and the number of a piece in, its letters and where it stands in a word out.

Kinds of vocabulary mark other things: where a word goes on (WordPiece), where it ends (BPE), or the space before it
(byte-level BPE, Unigram).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenizers import decoders

from bertworks.vocabulary.algorithms import CONTINUING, SPACE_MARK, WORD_END
from bertworks.vocabulary.characters import IDEOGRAPH
from bertworks.vocabulary.tokenizer import Tokenizer

# Ideographs, kana, and their own signs.
_WIDE = f"[\u3000-\u30ff\uff00-\uffef]|{IDEOGRAPH.pattern}"
_BESIDE_WIDE = re.compile(rf"(?<={_WIDE}) +| +(?={_WIDE})")
_WIDE_END = re.compile(rf"(?:{_WIDE})[”’…—]*$")


@dataclass(frozen=True, slots=True)
class Written:
    """A piece without marks.

    space       whether a space stands before it; None where the vocabulary does not tell
    continues   whether it belongs to the word before it; None where only the end of a word is marked
    ends        whether the word ends with it; None where only the beginning is marked
    """

    letters: str
    space: bool | None
    continues: bool | None
    ends: bool | None = None


def piece_written(tokenizer: Tokenizer, number: int) -> Written:
    """Return how a piece is written."""
    return _WAYS.get(tokenizer.kind, _words)(tokenizer.pieces[number])


def text_written(tokenizer: Tokenizer, numbers: Sequence[int]) -> str:
    """Return pieces as running text, as the vocabulary's own decoder writes it."""
    text: str = tokenizer.backend.decode(list(numbers), skip_special_tokens=False)
    return text


def prose_written(tokenizer: Tokenizer, numbers: Sequence[int]) -> str:
    """Return pieces as a text that people read: no space stands beside an ideograph or a sign as wide as one."""
    return _BESIDE_WIDE.sub("", text_written(tokenizer, numbers)).strip()


def is_wide(text: str) -> bool:
    """Whether a text ends as those do that have no spaces: with an ideograph or a sign as wide as one."""
    return bool(_WIDE_END.search(text))


def _wordpiece(piece: str) -> Written:
    continues = piece.startswith(CONTINUING)
    return Written(piece.removeprefix(CONTINUING), False if continues else None, continues)


def _bpe(piece: str) -> Written:
    return Written(piece.removesuffix(WORD_END), None, None, piece.endswith(WORD_END))


def _byte_bpe(piece: str) -> Written:
    letters: str = decoders.ByteLevel().decode([piece])
    return _marked(letters, " ")


def _unigram(piece: str) -> Written:
    return _marked(piece, SPACE_MARK)


def _marked(piece: str, mark: str) -> Written:
    """Return a piece of a vocabulary that writes the space before a word into its first piece."""
    letters, space = piece.removeprefix(mark), piece.startswith(mark)
    is_letter = letters[:1].isalnum() and not IDEOGRAPH.match(letters)  # an ideograph begins a word of its own
    return Written(letters, space, not space and is_letter)


def _words(piece: str) -> Written:
    return Written(piece, None, False, True)


_WAYS: dict[str, Callable[[str], Written]] = {
    "wordpiece": _wordpiece,
    "bpe": _bpe,
    "byte-bpe": _byte_bpe,
    "unigram": _unigram,
    "words": _words,
}
