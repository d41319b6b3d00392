"""WordPiece exactly as Google released it: text in, tokens and their offsets into the original text out.

The WordPiece of `tokenizers` differs from the release in a few ways (a final Greek sigma, private-use and unassigned
characters, words of 101 to 200 characters), and it tokenizes every occurrence of a word again. Here a text is split
into units at characters where the release always splits (white space, ideographs), and the tokens of a unit are cached.
That is exact, and several times as fast.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bertworks.vocabulary.characters import (
    ALONE,
    CONTROL_WHITESPACE,
    IDEOGRAPH,
    LETTER,
    SPACES,
    character_classes,
    is_punctuation,
    is_removed,
)
from bertworks.vocabulary.token_arrays import FlatTokens, TokenizedText, TokenTuple, WordBoundaries, token_dtype

_ASCII_WORD = re.compile("[A-Za-z0-9]+|[^A-Za-z0-9]")
_UNIT = re.compile(f"[^{SPACES}]+")
_UNIT_OR_IDEOGRAPH = re.compile(f"{IDEOGRAPH.pattern}|[^{SPACES}{IDEOGRAPH.pattern[1:-1]}]+")

# A cache of more units is emptied: that bounds a worker's memory to about 60 MB, whatever the corpus holds.
_MAX_UNITS = 250_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WordPieceRules:
    """Normalization and limits. The defaults are those of Google's uncased releases.

    A tokenizer.json may state others: Hugging Face's limit is 100 characters per word.
    """

    lower_case: bool = True
    strip_accents: bool = True
    split_ideographs: bool = True
    unknown: str = "[UNK]"
    continuation: str = "##"
    max_characters: int = 200


class _Units(NamedTuple):
    """The units of some sentences.

    ids               index of each unit in the unit cache
    is_continuation   whether a unit continues the word of the unit before it
    counts            number of units per sentence
    """

    ids: npt.NDArray[np.int32]
    is_continuation: npt.NDArray[np.bool_]
    counts: npt.NDArray[np.int64]


_NO_UNITS = _Units(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.bool_), np.zeros(0, dtype=np.int64))


class WordPiece:
    """Greedy longest-match-first tokenization, word by word."""

    def __init__(self, tokens: Sequence[str], rules: WordPieceRules) -> None:
        self.rules = rules
        self.vocab_size = len(tokens)
        prefix = rules.continuation
        self._initial_tokens = {token: token_id for token_id, token in enumerate(tokens)}
        self._continuation_tokens = {
            token.removeprefix(prefix): token_id
            for token, token_id in self._initial_tokens.items()
            if token.startswith(prefix)
        }
        self._unknown_id = self._initial_tokens[rules.unknown]
        self._max_token_length = max(map(len, tokens))
        self._tokens_by_word: dict[str, tuple[tuple[int, int, int], ...]] = {}
        self._tokens_by_unit: dict[str, list[TokenTuple]] = {}  # with offsets, for `encode`
        self._unit_cache = _UnitCache(self._tokenize_unit)
        self._unit_pattern = _UNIT_OR_IDEOGRAPH if rules.split_ideographs else _UNIT

    def encode(self, text: str) -> TokenizedText:
        """Return the tokens of `text` with their offsets."""
        tokens: list[TokenTuple] = []
        if len(self._tokens_by_unit) > _MAX_UNITS:
            self._tokens_by_unit.clear()
        for match in self._unit_pattern.finditer(text):
            unit = match.group()
            unit_tokens = self._tokens_by_unit.get(unit)
            if unit_tokens is None:
                unit_tokens = self._tokens_by_unit[unit] = self._tokenize_unit(unit)
            offset = match.start()
            for token_id, start, end, begins_word in unit_tokens:
                tokens.append((token_id, offset + start, offset + end, begins_word))
        return TokenizedText.from_tuples(tokens)

    def encode_sentences(self, sentences: Sequence[str], boundaries: WordBoundaries | None = None) -> FlatTokens:
        """Return the tokens of many sentences without offsets: the fast path, for a whole corpus.

        `boundaries`, if any, finds words in sentences with ideographs (jieba); without it each ideograph is a word.
        """
        parts = [
            self._units_by_character(list(group), boundaries)
            if has_ideographs and self.rules.split_ideographs
            else self._units_by_space(list(group))
            for has_ideographs, group in groupby(sentences, _has_ideographs)
        ]
        units = _Units(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True))) if parts else _NO_UNITS
        flat = self._unit_cache.gather(units, token_dtype(self.vocab_size))
        if len(self._unit_cache) > _MAX_UNITS:
            self._unit_cache = _UnitCache(self._tokenize_unit)
        return flat

    def _units_by_space(self, sentences: list[str]) -> _Units:
        """Split sentences without ideographs at white space; punctuation stays in its unit."""
        units = [self._prepare_sentence(sentence).split() for sentence in sentences]
        counts = np.fromiter(map(len, units), dtype=np.int64, count=len(units))
        ids = np.fromiter(map(self._unit_cache.__getitem__, chain.from_iterable(units)), np.int32, int(counts.sum()))
        return _Units(ids, np.zeros(len(ids), dtype=np.bool_), counts)

    def _prepare_sentence(self, sentence: str) -> str:
        """Return a sentence that split() splits as BERT does. ASCII is lowered here, for fewer distinct units."""
        if not sentence.isprintable():
            sentence = CONTROL_WHITESPACE.sub("", sentence)
        return sentence.lower() if self.rules.lower_case and sentence.isascii() else sentence

    def _units_by_character(self, sentences: list[str], boundaries: WordBoundaries | None) -> _Units:
        """Split sentences with ideographs: each ideograph and punctuation character is a unit, and each run between."""
        text = "\n".join(sentences)
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        classes = character_classes()[codes]
        if "Σ" in text:  # its lower case depends on the letters around it, even across punctuation
            is_alone = classes == ALONE
            classes[is_alone] = np.where(
                [IDEOGRAPH.match(chr(code)) is not None for code in codes[is_alone]], ALONE, LETTER
            )
        letters = classes == LETTER
        run_starts = letters & ~np.concatenate(([False], letters[:-1]))
        starts = np.flatnonzero(run_starts | (classes == ALONE))
        ids = self._unit_cache.character_ids(codes[starts])
        runs = np.flatnonzero(run_starts[starts])
        run_ends = np.flatnonzero(letters & ~np.concatenate((letters[1:], [False]))) + 1
        for index, start, end in zip(runs.tolist(), starts[runs].tolist(), run_ends.tolist(), strict=True):
            ids[index] = self._unit_cache[text[start:end]]
        is_continuation = np.zeros(len(starts), dtype=np.bool_)
        if boundaries is not None:
            is_continuation = ~boundaries(text)[starts]
        lengths = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
        sentence_ends = np.cumsum(lengths + 1)
        counts = np.diff(np.searchsorted(starts, sentence_ends), prepend=0)
        return _Units(ids, is_continuation, counts)

    def _tokenize_unit(self, unit: str) -> list[TokenTuple]:
        """Tokenize a unit. Most are printable ASCII, which needs no Unicode tables."""
        if not (unit.isascii() and unit.isprintable()):
            return self._tokenize_non_ascii_unit(unit)
        tokens = []
        lowered = unit.lower() if self.rules.lower_case else unit
        offset = 0
        for word in _ASCII_WORD.findall(lowered):
            for token_id, start, end in self._tokenize_word(word):
                tokens.append((token_id, offset + start, offset + end, start == 0))
            offset += len(word)
        return tokens

    def _tokenize_non_ascii_unit(self, unit: str) -> list[TokenTuple]:
        characters, starts, ends = self._normalize(unit)
        tokens = []
        for first, stop in _basic_words(characters):
            for token_id, start, end in self._tokenize_word("".join(characters[first:stop])):
                tokens.append((token_id, starts[first + start], ends[first + end - 1], start == 0))
        return tokens

    def _normalize(self, unit: str) -> tuple[list[str], list[int], list[int]]:
        """Clean, lower and strip accents; return the characters, and the start and end of each in `unit`."""
        clean = [(character, start) for start, character in enumerate(unit) if not is_removed(character)]
        characters = [character for character, _ in clean]
        starts = [start for _, start in clean]
        if self.rules.lower_case:
            # The whole unit is lowered at once for the final sigma; the lengths are those of lowering one by one.
            starts = [start for character, start in clean for _ in character.lower()]
            characters = list("".join(characters).lower())
        if self.rules.strip_accents:
            return _strip_accents(characters, starts)
        return characters, starts, [start + 1 for start in starts]

    def _tokenize_word(self, word: str) -> tuple[tuple[int, int, int], ...]:
        """Return (id, start, end) of each token of one basic word."""
        cached = self._tokens_by_word.get(word)
        if cached is not None:
            return cached
        if len(self._tokens_by_word) > _MAX_UNITS:
            self._tokens_by_word.clear()
        tokens: list[tuple[int, int, int]] = []
        start, vocabulary = 0, self._initial_tokens
        while start < len(word) <= self.rules.max_characters:
            for end in range(min(len(word), start + self._max_token_length), start, -1):
                token_id = vocabulary.get(word[start:end])
                if token_id is not None:
                    tokens.append((token_id, start, end))
                    start, vocabulary = end, self._continuation_tokens
                    break
            else:
                tokens.clear()
                break
        result = self._tokens_by_word[word] = tuple(tokens) or ((self._unknown_id, 0, len(word)),)
        return result


class _UnitCache(dict[str, int]):
    """Unit -> unit id, with the tokens of all units in flat arrays, from which numpy assembles a corpus."""

    def __init__(self, tokenize_unit: Callable[[str], list[TokenTuple]]) -> None:
        super().__init__()
        self._tokenize_unit = tokenize_unit
        self._input_ids = array("i")
        self._word_starts = array("b")
        self._ends = array("q", [0])
        self._by_code = np.full(0x110000, -1, dtype=np.int32)

    def __missing__(self, unit: str) -> int:
        for token_id, _, _, begins_word in self._tokenize_unit(unit):
            self._input_ids.append(token_id)
            self._word_starts.append(begins_word)
        self._ends.append(len(self._input_ids))
        unit_id = self[unit] = len(self._ends) - 2
        return unit_id

    def character_ids(self, codes: npt.NDArray[np.uint32]) -> npt.NDArray[np.int32]:
        """Return the unit ids of single characters, by their code points."""
        ids = self._by_code[codes]
        if (ids < 0).any():
            for code in np.unique(codes[ids < 0]).tolist():
                self._by_code[code] = self[chr(code)]
            ids = self._by_code[codes]
        return ids

    def gather(self, units: _Units, dtype: npt.DTypeLike) -> FlatTokens:
        """Concatenate the tokens of the units."""
        cache_ends = np.array(self._ends, dtype=np.int64)
        lengths = np.diff(cache_ends)[units.ids]
        ends = np.cumsum(lengths)
        starts = ends - lengths
        total = int(ends[-1]) if len(ends) else 0
        indices = np.repeat(cache_ends[units.ids] - starts, lengths) + np.arange(total)
        input_ids = np.array(self._input_ids, dtype=dtype)[indices]
        word_starts = np.array(self._word_starts, dtype=np.bool_)[indices]
        word_starts[starts[units.is_continuation & (lengths > 0)]] = False
        return FlatTokens(input_ids, np.concatenate(([0], ends))[np.cumsum(units.counts)], word_starts)


def _has_ideographs(sentence: str) -> bool:
    return not sentence.isascii() and IDEOGRAPH.search(sentence) is not None


def _basic_words(characters: list[str]) -> list[tuple[int, int]]:
    """Return the (start, stop) of the words in a unit: each punctuation character, and each run between."""
    words: list[tuple[int, int]] = []
    start = 0
    for index, character in enumerate(characters):
        if is_punctuation(character):
            if start < index:
                words.append((start, index))
            words.append((index, index + 1))
            start = index + 1
    if start < len(characters):
        words.append((start, len(characters)))
    return words


def _strip_accents(characters: list[str], starts: list[int]) -> tuple[list[str], list[int], list[int]]:
    """Decompose (NFD) and remove combining marks; a mark's offsets become part of the character before it."""
    decomposed = [
        (part, start, start + 1)
        for character, start in zip(characters, starts, strict=True)
        for part in unicodedata.normalize("NFD", character)
    ]
    stripped: list[str] = []
    stripped_starts: list[int] = []
    stripped_ends: list[int] = []
    for part, start, end in _canonical_order(decomposed):
        if unicodedata.category(part) != "Mn":
            stripped.append(part)
            stripped_starts.append(start)
            stripped_ends.append(end)
        elif stripped_ends:
            stripped_ends[-1] = max(stripped_ends[-1], end)
    return stripped, stripped_starts, stripped_ends


def _canonical_order(parts: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Sort each run of combining marks by combining class, as NFD does; the sort is stable.

    In a run whose order changes, each mark gets the offsets of the whole run: starts must not decrease between tokens.
    """
    ordered: list[tuple[str, int, int]] = []
    for is_combining, run in groupby(parts, key=lambda part: unicodedata.combining(part[0]) > 0):
        marks = list(run)
        by_class = sorted(marks, key=lambda part: unicodedata.combining(part[0])) if is_combining else marks
        if by_class != marks:
            by_class = [(part, marks[0][1], marks[-1][2]) for part, _, _ in by_class]
        ordered += by_class
    return ordered
