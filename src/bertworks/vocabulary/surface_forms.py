"""The surface form of tokens: a vocabulary and a token id in, its text and its position in a word out.

Vocabularies mark different things: that a token continues a word (WordPiece), that a word ends (BPE), or that a space
precedes the token (byte-level BPE, Unigram).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenizers import decoders

from bertworks.vocabulary.algorithms import CONTINUATION_PREFIX, SPACE_MARK, WORD_END
from bertworks.vocabulary.characters import IDEOGRAPH
from bertworks.vocabulary.tokenizer import Tokenizer

# Ideographs, kana, and full-width punctuation.
_WIDE = f"[\u3000-\u30ff\uff00-\uffef]|{IDEOGRAPH.pattern}"
_SPACES_BESIDE_WIDE = re.compile(rf"(?<={_WIDE}) +| +(?={_WIDE})")
_WIDE_END = re.compile(rf"(?:{_WIDE})[”’…—]*$")


@dataclass(frozen=True, slots=True)
class SurfaceForm:
    """A token without the marks of its vocabulary.

    has_space_before   None where the vocabulary does not mark it
    is_continuation    whether it continues the word before it; None where only the end of a word is marked
    is_word_end        None where only the beginning of a word is marked
    """

    text: str
    has_space_before: bool | None
    is_continuation: bool | None
    is_word_end: bool | None = None


def surface_form(tokenizer: Tokenizer, token_id: int) -> SurfaceForm:
    """Return the surface form of a token."""
    kind = "unigram" if tokenizer.marks_spaces else tokenizer.kind
    return _SURFACE_FORMS.get(kind, _words)(tokenizer.tokens[token_id])


def decode_tokens(tokenizer: Tokenizer, input_ids: Sequence[int]) -> str:
    """Return tokens as text, with the decoder of the vocabulary."""
    text: str = tokenizer.backend.decode(list(input_ids), skip_special_tokens=False)
    return text


def decode_display_text(tokenizer: Tokenizer, input_ids: Sequence[int]) -> str:
    """Return tokens as text for display, without spaces next to ideographs and full-width punctuation."""
    return _SPACES_BESIDE_WIDE.sub("", decode_tokens(tokenizer, input_ids)).strip()


def is_wide(text: str) -> bool:
    """Whether a text ends with an ideograph, kana or full-width punctuation, after which no space is written."""
    return bool(_WIDE_END.search(text))


def _wordpiece(token: str) -> SurfaceForm:
    is_continuation = token.startswith(CONTINUATION_PREFIX)
    return SurfaceForm(token.removeprefix(CONTINUATION_PREFIX), False if is_continuation else None, is_continuation)


def _bpe(token: str) -> SurfaceForm:
    return SurfaceForm(token.removesuffix(WORD_END), None, None, token.endswith(WORD_END))


def _byte_bpe(token: str) -> SurfaceForm:
    text: str = decoders.ByteLevel().decode([token])
    return _space_marked_form(text, " ")


def _unigram(token: str) -> SurfaceForm:
    return _space_marked_form(token, SPACE_MARK)


def _space_marked_form(token: str, mark: str) -> SurfaceForm:
    """Return the surface form in a vocabulary where the first token of a word includes the space before it."""
    text, has_space = token.removeprefix(mark), token.startswith(mark)
    continues_letters = text[:1].isalnum() and not IDEOGRAPH.match(text)  # each ideograph begins a word
    return SurfaceForm(text, has_space, not has_space and continues_letters)


def _words(token: str) -> SurfaceForm:
    return SurfaceForm(token, None, False, True)


_SURFACE_FORMS: dict[str, Callable[[str], SurfaceForm]] = {
    "wordpiece": _wordpiece,
    "bpe": _bpe,
    "byte-bpe": _byte_bpe,
    "unigram": _unigram,
    "words": _words,
}
