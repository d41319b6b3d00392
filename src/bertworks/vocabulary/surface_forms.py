"""How a piece is written out: a vocabulary and the number of a piece in, its letters and where it stands in a word out.

Kinds of vocabulary mark other things: where a word goes on (WordPiece), where it ends (BPE), or the space before it
(byte-level BPE, Unigram).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenizers import decoders

from bertworks.vocabulary.algorithms import CONTINUATION_PREFIX, SPACE_MARK, WORD_END
from bertworks.vocabulary.characters import IDEOGRAPH
from bertworks.vocabulary.tokenizer import Tokenizer

# Ideographs, kana, and their own signs.
_WIDE = f"[\u3000-\u30ff\uff00-\uffef]|{IDEOGRAPH.pattern}"
_BESIDE_WIDE = re.compile(rf"(?<={_WIDE}) +| +(?={_WIDE})")
_WIDE_END = re.compile(rf"(?:{_WIDE})[”’…—]*$")


@dataclass(frozen=True, slots=True)
class SurfaceForm:
    """A piece without marks.

    space       whether a space stands before it; None where the vocabulary does not tell
    continues   whether it belongs to the word before it; None where only the end of a word is marked
    ends        whether the word ends with it; None where only the beginning is marked
    """

    text: str
    has_space_before: bool | None
    is_continuation: bool | None
    is_word_end: bool | None = None


def surface_form(tokenizer: Tokenizer, token_id: int) -> SurfaceForm:
    """Return how a piece is written."""
    return _SURFACE_FORMS.get(tokenizer.kind, _words)(tokenizer.tokens[token_id])


def decode_tokens(tokenizer: Tokenizer, input_ids: Sequence[int]) -> str:
    """Return pieces as running text, as the vocabulary's own decoder writes it."""
    text: str = tokenizer.backend.decode(list(input_ids), skip_special_tokens=False)
    return text


def decode_display_text(tokenizer: Tokenizer, input_ids: Sequence[int]) -> str:
    """Return pieces as a text that people read: no space stands beside an ideograph or a sign as wide as one."""
    return _BESIDE_WIDE.sub("", decode_tokens(tokenizer, input_ids)).strip()


def is_wide(text: str) -> bool:
    """Whether a text ends as those do that have no spaces: with an ideograph or a sign as wide as one."""
    return bool(_WIDE_END.search(text))


def _wordpiece(token: str) -> SurfaceForm:
    continues = token.startswith(CONTINUATION_PREFIX)
    return SurfaceForm(token.removeprefix(CONTINUATION_PREFIX), False if continues else None, continues)


def _bpe(token: str) -> SurfaceForm:
    return SurfaceForm(token.removesuffix(WORD_END), None, None, token.endswith(WORD_END))


def _byte_bpe(token: str) -> SurfaceForm:
    letters: str = decoders.ByteLevel().decode([token])
    return _space_marked_form(letters, " ")


def _unigram(token: str) -> SurfaceForm:
    return _space_marked_form(token, SPACE_MARK)


def _space_marked_form(token: str, mark: str) -> SurfaceForm:
    """Return a piece of a vocabulary that writes the space before a word into its first piece."""
    letters, space = token.removeprefix(mark), token.startswith(mark)
    is_letter = letters[:1].isalnum() and not IDEOGRAPH.match(letters)  # an ideograph begins a word of its own
    return SurfaceForm(letters, space, not space and is_letter)


def _words(token: str) -> SurfaceForm:
    return SurfaceForm(token, None, False, True)


_SURFACE_FORMS: dict[str, Callable[[str], SurfaceForm]] = {
    "wordpiece": _wordpiece,
    "bpe": _bpe,
    "byte-bpe": _byte_bpe,
    "unigram": _unigram,
    "words": _words,
}
