"""What each token of a vocabulary spells: a Tokenizer in, arrays over its token ids out: script, letters, word marks.

With these arrays, token ids alone tell how a text is read; the text is not needed again.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bertworks.text.languages import script_of
from bertworks.vocabulary.surface_forms import SurfaceForm, surface_form
from bertworks.vocabulary.tokenizer import Tokenizer

# A letter of a script that `text.languages` does not list.
OTHER_SCRIPT = "another"
# Scripts in which one character is a syllable or a word, so that a token of one character is usual.
_SYLLABIC_SCRIPTS = frozenset(("Han", "Hiragana", "Katakana", "Hangul", "Ethiopic"))
_REPLACEMENT = "\ufffd"
# A vocabulary is multilingual if it has at least this many tokens of each of at least so many scripts.
_MIN_SCRIPT_TOKENS, _MIN_SCRIPTS = 1_000, 4

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScripts:
    """Arrays (V,) over the token ids of a vocabulary, false or 0 for special tokens.

    scripts        the names of all scripts; `script` is 0 for tokens without letters, else an index into them plus 1
    is_part        less than a character: bytes of byte-level BPE, or a jamo, a part of a Korean syllable
    is_letter      a single letter of an alphabet
    joins_left     may continue the word of the token before it, if that one `joins_right`
    num_tokens     how many tokens the vocabulary has of each script
    """

    scripts: tuple[str, ...]
    script: npt.NDArray[np.int8]
    is_part: Bools
    is_letter: Bools
    joins_left: Bools
    joins_right: Bools
    num_tokens: Counter[str]

    @property
    def is_multilingual(self) -> bool:
        return sum(count >= _MIN_SCRIPT_TOKENS for count in self.num_tokens.values()) >= _MIN_SCRIPTS

    def is_minor(self, script: str) -> bool:
        """Whether the vocabulary is made for another script: this one has less than half as many tokens."""
        return not self.is_multilingual and 2 * self.num_tokens[script] < max(self.num_tokens.values())


def is_alphabetic(script: str) -> bool:
    """Whether words of a script have several letters, so that a token of one letter says little."""
    return script not in _SYLLABIC_SCRIPTS


_CACHE: weakref.WeakKeyDictionary[Tokenizer, TokenScripts] = weakref.WeakKeyDictionary()


def token_scripts(tokenizer: Tokenizer) -> TokenScripts:
    """Return the arrays of a vocabulary; they are built once (30,000 tokens take a tenth of a second)."""
    if tokenizer not in _CACHE:
        _CACHE[tokenizer] = _build(tokenizer)
    return _CACHE[tokenizer]


def _build(tokenizer: Tokenizer) -> TokenScripts:
    size = tokenizer.vocab_size
    names: dict[str, int] = {}
    num_tokens: Counter[str] = Counter()
    script = np.zeros(size, dtype=np.int8)
    is_part, is_letter, joins_left, joins_right = (np.zeros(size, dtype=np.bool_) for _ in range(4))
    for token_id in _ordinary_ids(tokenizer):
        form = surface_form(tokenizer, token_id)
        letters = [name for name in map(_letter_script, form.text) if name]
        is_part[token_id] = _REPLACEMENT in form.text or (len(form.text) == 1 and _is_jamo(form.text))
        joins_left[token_id], joins_right[token_id] = _joins(form, bool(letters) or bool(is_part[token_id]))
        if letters and not is_part[token_id]:
            name = letters[0]
            script[token_id] = names.setdefault(name, len(names) + 1)
            num_tokens[name] += 1
            is_letter[token_id] = len(letters) == 1 and is_alphabetic(name)
    return TokenScripts(
        scripts=tuple(names),
        script=script,
        is_part=is_part,
        is_letter=is_letter,
        joins_left=joins_left,
        joins_right=joins_right,
        num_tokens=num_tokens,
    )


def _ordinary_ids(tokenizer: Tokenizer) -> Iterator[int]:
    """Yield the ids of tokens that occur in text: no special tokens and no [unused…] ones."""
    special_ids = frozenset(tokenizer.specials.ids)
    for token_id, token in enumerate(tokenizer.tokens):
        is_bracketed = len(token) > 2 and (token[0] + token[-1]) in ("[]", "<>")
        if token_id not in special_ids and not is_bracketed:
            yield token_id


def _joins(form: SurfaceForm, is_spelled: bool) -> tuple[bool, bool]:
    """Return whether a token may continue a word, and whether the next one may continue it."""
    joins_left = True if form.is_continuation is None else form.is_continuation  # BPE marks only the end of words
    return joins_left, is_spelled if form.is_word_end is None else not form.is_word_end


def _letter_script(character: str) -> str | None:
    return script_of(character) or (OTHER_SCRIPT if character.isalpha() else None)


def _is_jamo(character: str) -> bool:
    return "\u1100" <= character <= "\u11ff"
