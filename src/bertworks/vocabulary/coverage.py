"""How well a vocabulary fits a text: a backend and held-out texts in, a Coverage out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import tokenizers

from bertworks.errors import InputError
from bertworks.text.document import Counts
from bertworks.vocabulary.algorithms import CONTINUATION_PREFIX, SPACE_MARK, WORD_END, detect_kind, is_cased
from bertworks.vocabulary.counting import NUM_DISTINCT, count_words

# How ByteLevel writes a space and a line break.
_BYTE_WHITESPACE = "ĠĊ"


@dataclass(frozen=True, slots=True)
class VocabularyCoverage:
    """Figures over running text. A word is what the pre-tokeniser calls one, so words differ between kinds.

    `characters_per_piece` counts the characters of the normalised words without white space: it compares all kinds.
    """

    num_words: int
    num_tokens: int
    unknown_ratio: float  # share of words with an unknown piece
    whole_word_ratio: float  # share of words that are one known piece
    tokens_per_word: float
    characters_per_token: float
    used_token_ratio: float  # share of the vocabulary's pieces that occur
    unknown_words: tuple[tuple[str, int], ...]
    unknown_characters: tuple[tuple[str, int], ...]


def measure_coverage(
    backend: tokenizers.Tokenizer, texts: Iterable[str], num_examples: int = 20, counts: Counts | None = None
) -> VocabularyCoverage:
    """Measure a vocabulary on texts. Words are counted first, each different one is split once.

    Memory is bounded by the number of different words; `counts` tells of words that were forgotten for that.
    """
    kind = detect_kind(backend)
    words = count_words(
        texts, backend, kind.chunks(is_cased(backend)), NUM_DISTINCT, Counts() if counts is None else counts
    )
    words = {word: count for word, count in words.items() if word.strip(_BYTE_WHITESPACE + SPACE_MARK)}
    if not words:
        raise InputError("measuring a vocabulary: the texts hold not a single word; check the source")
    tally = _CoverageCounter(backend, kind.specials.unknown)
    for word, count in words.items():
        tally.add(word, count)
    num_words = sum(words.values())
    return VocabularyCoverage(
        num_words=num_words,
        num_tokens=tally.num_tokens,
        unknown_ratio=tally.unknown_words.total() / num_words,
        whole_word_ratio=tally.num_whole_words / num_words,
        tokens_per_word=tally.num_tokens / num_words,
        characters_per_token=tally.num_characters / tally.num_tokens,
        used_token_ratio=len(tally.used_ids) / backend.get_vocab_size(),
        unknown_words=_most_frequent(tally.unknown_words, num_examples),
        unknown_characters=_most_frequent(tally.unknown_characters, num_examples),
    )


class _CoverageCounter:
    """Sums over words, one word at a time."""

    def __init__(self, backend: tokenizers.Tokenizer, unknown: str) -> None:
        self._model = backend.model
        self._unknown = backend.token_to_id(unknown)
        self._known_strings = {
            piece.removeprefix(CONTINUATION_PREFIX).removesuffix(WORD_END) for piece in backend.get_vocab()
        }
        self._is_byte_level = detect_kind(backend).name == "byte-bpe"
        self.num_tokens = self.num_whole_words = self.num_characters = 0
        self.used_ids: set[int] = set()
        self.unknown_words: Counter[str] = Counter()
        self.unknown_characters: Counter[str] = Counter()

    def add(self, word: str, count: int) -> None:
        ids = [token.id for token in self._model.tokenize(word)]
        self.num_tokens += count * len(ids)
        self.num_characters += count * self._num_characters(word)
        self.used_ids.update(ids)
        if self._unknown in ids:
            self._add_unknown(word.removeprefix(SPACE_MARK), count)
        elif len(ids) == 1:
            self.num_whole_words += count

    def _add_unknown(self, word: str, count: int) -> None:
        self.unknown_words[word] += count
        for character in word:
            if character not in self._known_strings:
                self.unknown_characters[character] += count

    def _num_characters(self, word: str) -> int:
        bare = word.strip(_BYTE_WHITESPACE) if self._is_byte_level else word.removeprefix(SPACE_MARK)
        if not self._is_byte_level:
            return len(bare)
        # A character of UTF-8 has exactly one byte that is no continuation byte (0x80 to 0xBF).
        return sum(letter not in _CONTINUATION_BYTES for letter in bare)


# ByteLevel writes printable bytes as themselves and shifts the others behind U+0100, in order of the bytes: 0x7F to
# 0xA0 are U+0121 to U+0142 and 0xAD is U+0143.
_CONTINUATION_BYTES = frozenset(
    [*(chr(0x0121 + byte - 0x7F) for byte in range(0x80, 0xA1)), *map(chr, range(0xA1, 0xAD)), "\u0143"]
    + [chr(byte) for byte in range(0xAE, 0xC0)]
)


def _most_frequent(counter: Counter[str], number: int) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(counter.items(), key=lambda item: (-item[1], item[0]))[:number])
