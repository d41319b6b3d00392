"""How well a vocabulary covers held-out text: a backend and texts in, a VocabularyCoverage out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import tokenizers

from bertworks.errors import InputError
from bertworks.text.document import Counts
from bertworks.vocabulary.algorithms import CONTINUATION_PREFIX, SPACE_MARK, WORD_END, detect_kind, is_cased
from bertworks.vocabulary.counting import NUM_DISTINCT, count_words

# The space and the line break in ByteLevel's alphabet.
_BYTE_WHITESPACE = "ĠĊ"


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyCoverage:
    """Statistics over text. Words are those of the pre-tokenizer, so they differ between kinds of vocabulary.

    `characters_per_token` counts characters of normalized words, without white space: it is comparable between kinds.
    """

    num_words: int
    num_tokens: int
    unknown_ratio: float  # of words with an unknown token
    whole_word_ratio: float  # of words that are a single known token
    tokens_per_word: float
    characters_per_token: float
    used_token_ratio: float  # of the vocabulary's tokens that occur
    unknown_words: tuple[tuple[str, int], ...]
    unknown_characters: tuple[tuple[str, int], ...]


def measure_coverage(
    backend: tokenizers.Tokenizer, texts: Iterable[str], num_examples: int = 20, counts: Counts | None = None
) -> VocabularyCoverage:
    """Measure a vocabulary on texts. Words are counted first, so each distinct word is tokenized once.

    Memory is bounded by the number of distinct words; `counts` records words that were left out for that.
    """
    kind = detect_kind(backend)
    words = count_words(
        texts, backend, kind.chunks(is_cased(backend)), NUM_DISTINCT, Counts() if counts is None else counts
    )
    words = {word: count for word, count in words.items() if word.strip(_BYTE_WHITESPACE + SPACE_MARK)}
    if not words:
        raise InputError("measuring a vocabulary: the texts contain no words; check the source")
    counter = _CoverageCounter(backend, kind.specials.unknown)
    for word, count in words.items():
        counter.add(word, count)
    num_words = sum(words.values())
    return VocabularyCoverage(
        num_words=num_words,
        num_tokens=counter.num_tokens,
        unknown_ratio=counter.unknown_words.total() / num_words,
        whole_word_ratio=counter.num_whole_words / num_words,
        tokens_per_word=counter.num_tokens / num_words,
        characters_per_token=counter.num_characters / counter.num_tokens,
        used_token_ratio=len(counter.used_ids) / backend.get_vocab_size(),
        unknown_words=_most_frequent(counter.unknown_words, num_examples),
        unknown_characters=_most_frequent(counter.unknown_characters, num_examples),
    )


class _CoverageCounter:
    """Running totals over words."""

    def __init__(self, backend: tokenizers.Tokenizer, unknown: str) -> None:
        self._model = backend.model
        self._unknown = backend.token_to_id(unknown)
        self._known_strings = {
            token.removeprefix(CONTINUATION_PREFIX).removesuffix(WORD_END) for token in backend.get_vocab()
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
        if not self._is_byte_level:
            return len(word.removeprefix(SPACE_MARK))
        # A UTF-8 character has exactly one byte that is not a continuation byte (0x80 to 0xBF).
        return sum(byte not in _CONTINUATION_BYTES for byte in word.strip(_BYTE_WHITESPACE))


# ByteLevel maps printable bytes to themselves and the others, in order, to U+0100 and above: 0x7F to 0xA0 are U+0121 to
# U+0142, and 0xAD is U+0143.
_CONTINUATION_BYTES = frozenset(
    [*(chr(0x0121 + byte - 0x7F) for byte in range(0x80, 0xA1)), *map(chr, range(0xA1, 0xAD)), "\u0143"]
    + [chr(byte) for byte in range(0xAE, 0xC0)]
)


def _most_frequent(words: Counter[str], num_words: int) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(words.items(), key=lambda item: (-item[1], item[0]))[:num_words])
