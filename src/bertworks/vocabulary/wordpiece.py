"""WordPiece exactly as Google released it: text in, pieces and their places in the original text out.

`tokenizers` has a WordPiece of its own, but it differs from the release in a few ways (a final Greek sigma, private-use
and unassigned characters, words of 101 to 200 characters) and it does the same work for every copy of a word. Here a
text is cut where the release always cuts it, and what was once worked out for such a unit is remembered. That makes it
exact, and several times as fast.
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
from bertworks.vocabulary.token_arrays import FlatTokens, TokenWithOffsets, WordBoundaries, token_dtype

_ASCII_WORD = re.compile("[A-Za-z0-9]+|[^A-Za-z0-9]")
_UNIT = re.compile(f"[^{SPACES}]+")
_UNIT_OR_IDEOGRAPH = re.compile(f"{IDEOGRAPH.pattern}|[^{SPACES}{IDEOGRAPH.pattern[1:-1]}]+")

# Remembered units before all are forgotten: bounds a worker's memory to about 60 MB, whatever the corpus holds.
_MAX_UNITS = 250_000


# A PlacedPiece as a bare tuple: half of the time to learn a new unit would go into naming its fields.
_TokenTuple = tuple[int, int, int, bool]


@dataclass(frozen=True, slots=True)
class WordPieceRules:
    """How a vocabulary wants its text. The defaults are those of Google's uncased releases.

    A folder from elsewhere may state others (Hugging Face's give up at 100 characters), and then those hold.
    """

    lower_case: bool = True
    strip_accents: bool = True
    split_ideographs: bool = True
    unknown: str = "[UNK]"
    continuation: str = "##"
    max_characters: int = 200


class _Units(NamedTuple):
    """The units of some sentences by number; which of them continue the word before; and how many a sentence has."""

    numbers: npt.NDArray[np.int32]
    is_continuation: npt.NDArray[np.bool_]
    counts: npt.NDArray[np.int64]


_NO_UNITS = _Units(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.bool_), np.zeros(0, dtype=np.int64))


class WordPiece:
    """Cuts text into the longest pieces of a vocabulary, from the left, word by word."""

    def __init__(self, tokens: Sequence[str], rules: WordPieceRules) -> None:
        self.rules = rules
        self.vocab_size = len(tokens)
        mark = rules.continuation
        self._initial_tokens = {piece: number for number, piece in enumerate(tokens)}
        self._continuation_tokens = {
            piece[len(mark) :]: number for piece, number in self._initial_tokens.items() if piece.startswith(mark)
        }
        self._unknown_id = self._initial_tokens[rules.unknown]
        self._max_token_length = max(map(len, tokens))
        self._tokens_by_word: dict[str, tuple[tuple[int, int, int], ...]] = {}
        self._tokens_by_unit: dict[str, list[_TokenTuple]] = {}
        self._unit_cache = _UnitCache(self._tokenize_unit)
        self._unit_pattern = _UNIT_OR_IDEOGRAPH if rules.split_ideographs else _UNIT

    def encode(self, text: str) -> list[TokenWithOffsets]:
        """Return the pieces of `text` with their offsets into it."""
        placed: list[TokenWithOffsets] = []
        if len(self._tokens_by_unit) > _MAX_UNITS:
            self._tokens_by_unit.clear()
        for match in self._unit_pattern.finditer(text):
            unit = match.group()
            known = self._tokens_by_unit.get(unit)
            if known is None:
                known = self._tokens_by_unit[unit] = self._tokenize_unit(unit)
            at = match.start()
            for number, start, end, begins_word in known:
                placed.append(TokenWithOffsets(number, at + start, at + end, begins_word))
        return placed

    def encode_sentences(self, sentences: Sequence[str], boundaries: WordBoundaries | None = None) -> FlatTokens:
        """Return the pieces of many sentences as flat arrays, without offsets: the road of a whole corpus.

        `boundaries`, if given, says where words begin in text with ideographs (jieba); otherwise each is a word.
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
        """Units of text without ideographs: whatever stands between white space, punctuation and all."""
        split = [self._prepare_sentence(sentence).split() for sentence in sentences]
        counts = np.fromiter(map(len, split), dtype=np.int64, count=len(split))
        numbers = np.fromiter(
            map(self._unit_cache.__getitem__, chain.from_iterable(split)), np.int32, int(counts.sum())
        )
        return _Units(numbers, np.zeros(len(numbers), dtype=np.bool_), counts)

    def _prepare_sentence(self, sentence: str) -> str:
        """Return a sentence that split() cuts right; ASCII already in lower case, so that fewer units are different."""
        if not sentence.isprintable():
            sentence = CONTROL_WHITESPACE.sub("", sentence)
        return sentence.lower() if self.rules.lower_case and sentence.isascii() else sentence

    def _units_by_character(self, sentences: list[str], boundaries: WordBoundaries | None) -> _Units:
        """Units of text with ideographs: each ideograph and mark of punctuation alone, and runs of the rest."""
        text = "\n".join(sentences)
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        classes = character_classes()[codes]
        if "Σ" in text:  # its lower case depends on the letters around it, also across punctuation
            alone = classes == ALONE
            classes[alone] = np.where([IDEOGRAPH.match(chr(code)) is not None for code in codes[alone]], ALONE, LETTER)
        letters = classes == LETTER
        run_starts = letters & ~np.concatenate(([False], letters[:-1]))
        starts = np.flatnonzero(run_starts | (classes == ALONE))
        numbers = self._unit_cache.character_units(codes[starts])
        runs = np.flatnonzero(run_starts[starts])
        ends = np.flatnonzero(letters & ~np.concatenate((letters[1:], [False]))) + 1
        flat = self._unit_cache
        for place, start, end in zip(runs.tolist(), starts[runs].tolist(), ends.tolist(), strict=True):
            numbers[place] = flat[text[start:end]]
        joined = np.zeros(len(starts), dtype=np.bool_)
        if boundaries is not None:
            joined = ~boundaries(text)[starts]
        lengths = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
        sentence_ends = np.cumsum(lengths + 1)
        counts = np.diff(np.searchsorted(starts, sentence_ends), prepend=0)
        return _Units(numbers, joined, counts)

    def _tokenize_unit(self, unit: str) -> list[_TokenTuple]:
        """Work one unit out. Most are printable ASCII, where cutting and lowering need no table."""
        if not (unit.isascii() and unit.isprintable()):
            return self._tokenize_non_ascii_unit(unit)
        placed = []
        lowered = unit.lower() if self.rules.lower_case else unit
        at = 0
        for word in _ASCII_WORD.findall(lowered):
            for number, start, end in self._tokenize_word(word):
                placed.append((number, at + start, at + end, start == 0))
            at += len(word)
        return placed

    def _tokenize_non_ascii_unit(self, unit: str) -> list[_TokenTuple]:
        letters, begins, ends = self._normalize(unit)
        placed = []
        for first, last in _basic_words(letters):
            for number, start, end in self._tokenize_word("".join(letters[first:last])):
                placed.append((number, begins[first + start], ends[first + end - 1], start == 0))
        return placed

    def _normalize(self, unit: str) -> tuple[list[str], list[int], list[int]]:
        """Return the characters that remain after cleaning, lowering and stripping, and where each came from."""
        kept = [(character, place) for place, character in enumerate(unit) if not is_removed(character)]
        letters = [character for character, _ in kept]
        places = [place for _, place in kept]
        if self.rules.lower_case:
            # Lowering the whole word at once matters for one letter, the final sigma; lengths agree one by one.
            places = [place for character, place in kept for _ in character.lower()]
            letters = list("".join(letters).lower())
        ends = [place + 1 for place in places]
        if self.rules.strip_accents:
            return _strip_accents(letters, places)
        return letters, places, ends

    def _tokenize_word(self, word: str) -> tuple[tuple[int, int, int], ...]:
        """Return (id, start, end) of each piece of one basic word: the longest that fits, again and again."""
        known = self._tokens_by_word.get(word)
        if known is not None:
            return known
        if len(self._tokens_by_word) > _MAX_UNITS:
            self._tokens_by_word.clear()
        found: list[tuple[int, int, int]] = []
        start, table = 0, self._initial_tokens
        while start < len(word) <= self.rules.max_characters:
            for end in range(min(len(word), start + self._max_token_length), start, -1):
                number = table.get(word[start:end])
                if number is not None:
                    found.append((number, start, end))
                    start, table = end, self._continuation_tokens
                    break
            else:
                found.clear()
                break
        result = self._tokens_by_word[word] = tuple(found) or ((self._unknown_id, 0, len(word)),)
        return result


class _UnitCache(dict[str, int]):
    """Units by number; behind the numbers, flat arrays of their pieces, so that a corpus is put together by numpy."""

    def __init__(self, tokenize_unit: Callable[[str], list[_TokenTuple]]) -> None:
        super().__init__()
        self._tokenize_unit = tokenize_unit
        self._input_ids = array("i")
        self._word_starts = array("b")
        self._ends = array("q", [0])
        self._by_code = np.full(0x110000, -1, dtype=np.int32)

    def __missing__(self, unit: str) -> int:
        for number, _, _, begins_word in self._tokenize_unit(unit):
            self._input_ids.append(number)
            self._word_starts.append(begins_word)
        self._ends.append(len(self._input_ids))
        unit_number = self[unit] = len(self._ends) - 2
        return unit_number

    def character_units(self, codes: npt.NDArray[np.uint32]) -> npt.NDArray[np.int32]:
        """Return the unit numbers of single characters, by their code points."""
        numbers = self._by_code[codes]
        if (numbers < 0).any():
            for code in np.unique(codes[numbers < 0]).tolist():
                self._by_code[code] = self[chr(code)]
            numbers = self._by_code[codes]
        return numbers

    def gather(self, units: _Units, dtype: npt.DTypeLike) -> FlatTokens:
        """Put the pieces of the units in a row."""
        all_ends = np.array(self._ends, dtype=np.int64)
        lengths = np.diff(all_ends)[units.numbers]
        ends = np.cumsum(lengths)
        starts = ends - lengths
        total = int(ends[-1]) if len(ends) else 0
        places = np.repeat(all_ends[units.numbers] - starts, lengths) + np.arange(total)
        ids = np.array(self._input_ids, dtype=dtype)[places]
        begins = np.array(self._word_starts, dtype=np.bool_)[places]
        begins[starts[units.is_continuation & (lengths > 0)]] = False
        return FlatTokens(ids, np.concatenate(([0], ends))[np.cumsum(units.counts)], begins)


def _has_ideographs(sentence: str) -> bool:
    return not sentence.isascii() and IDEOGRAPH.search(sentence) is not None


def _basic_words(letters: list[str]) -> list[tuple[int, int]]:
    """Return the ranges of words in a unit: each mark of punctuation alone, and the runs between."""
    words: list[tuple[int, int]] = []
    start = 0
    for place, letter in enumerate(letters):
        if is_punctuation(letter):
            if start < place:
                words.append((start, place))
            words.append((place, place + 1))
            start = place + 1
    if start < len(letters):
        words.append((start, len(letters)))
    return words


def _strip_accents(letters: list[str], positions: list[int]) -> tuple[list[str], list[int], list[int]]:
    """Decompose, drop the marks, and let the letter before a mark that stood alone reach over it."""
    decomposed = [
        (part, place, place + 1)
        for letter, place in zip(letters, positions, strict=True)
        for part in unicodedata.normalize("NFD", letter)
    ]
    kept: list[str] = []
    begins: list[int] = []
    ends: list[int] = []
    for part, begin, end in _canonical_order(decomposed):
        if unicodedata.category(part) != "Mn":
            kept.append(part)
            begins.append(begin)
            ends.append(end)
        elif ends:
            ends[-1] = max(ends[-1], end)
    return kept, begins, ends


def _canonical_order(parts: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Sort each run of combining marks by its class, as NFD does, keeping equals in order.

    Marks that changed places each get the place of their whole run: starts must not decrease from piece to piece.
    """
    ordered: list[tuple[str, int, int]] = []
    for combines, run in groupby(parts, key=lambda part: unicodedata.combining(part[0]) > 0):
        marks = list(run)
        moved = sorted(marks, key=lambda part: unicodedata.combining(part[0])) if combines else marks
        if moved != marks:
            moved = [(part, marks[0][1], marks[-1][2]) for part, _, _ in moved]
        ordered += moved
    return ordered
