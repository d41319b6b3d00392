"""Train a vocabulary: clean texts in, a ready `tokenizers.Tokenizer` out.

The same texts give the same bytes, whatever the number of cores: words are counted first and processed in sorted order,
and nothing depends on threads or hash tables. The order of the tokens is: special tokens, unused entries, single
characters by code point, then the others in the order they were learned (unigram and words: by descending
probability). Memory is bounded by the number of distinct words (see `counting`, `merges`, `unigram`), not by the amount
of text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import regex
import tokenizers
from tokenizers import pre_tokenizers

from bertworks.errors import InputError, SettingsError
from bertworks.text.document import Counts
from bertworks.vocabulary.algorithms import (
    CONTINUATION_PREFIX,
    MAX_WORD_LENGTH,
    SPACE_MARK,
    WORD_END,
    Inventory,
    get_kind,
    unused_token,
)
from bertworks.vocabulary.counting import NUM_DISTINCT, count_words, word_splitter
from bertworks.vocabulary.merges import BORDER, learn_merges
from bertworks.vocabulary.unigram import MAX_RUN_LENGTH, learn_unigram

# Unigram training holds the lattices of all words in memory; more words would take more than 1.5 GB.
MAX_UNIGRAM_WORDS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularySettings:
    """How to train a vocabulary.

    kind             the algorithm: wordpiece, bpe, byte-bpe, unigram, words or jieba-words
    vocab_size       of all tokens, including special tokens and unused entries
    cased            keep upper case and accents
    min_count        rarer characters, words and merges get no token
    num_unused       unused entries [unused0], [unused1], …, which `extend` fills first (wordpiece only)
    num_characters   limit of single-character tokens; None: all that are frequent enough and fit in `vocab_size`
    num_distinct     limit of distinct words held in memory while counting
    """

    kind: str = "wordpiece"
    vocab_size: int = 30_000
    cased: bool = False
    min_count: int = 2
    num_unused: int = 0
    num_characters: int | None = None
    num_distinct: int = NUM_DISTINCT

    def __post_init__(self) -> None:
        kind = get_kind(self.kind)
        min_size = len(kind.specials.order) + self.num_unused + (256 if self.kind == "byte-bpe" else 1)
        if self.num_unused < 0:
            raise SettingsError(f"vocabulary num_unused = {self.num_unused}: must be 0 or more")
        if self.num_unused and self.kind != "wordpiece":
            raise SettingsError(
                f"vocabulary num_unused = {self.num_unused}: only a wordpiece vocabulary has unused entries, not"
                f" {self.kind}; set num_unused = 0"
            )
        if self.vocab_size < min_size:
            raise SettingsError(
                f"vocab_size = {self.vocab_size}: a {self.kind} vocabulary needs at least {min_size} for its special"
                " tokens, unused entries and characters; increase vocab_size"
            )
        for name in ("min_count", "num_distinct", "num_characters"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingsError(f"vocabulary {name} = {value}: must be 1 or more")

    @property
    def reserved_tokens(self) -> tuple[str, ...]:
        """The first tokens: special tokens and unused entries."""
        return (*get_kind(self.kind).specials.order, *(unused_token(index) for index in range(self.num_unused)))

    @property
    def num_learnable_tokens(self) -> int:
        return self.vocab_size - len(self.reserved_tokens)


def train(texts: Iterable[str], settings: VocabularySettings, counts: Counts | None = None) -> tokenizers.Tokenizer:
    """Train a vocabulary. It has fewer than `vocab_size` tokens if there is too little text.

    `counts` records how many are missing, and which characters and words were left out.
    """
    counts = Counts() if counts is None else counts
    kind = get_kind(settings.kind)
    backend = kind.untrained_tokenizer(settings.cased)
    words = count_words(texts, backend, kind.chunks(settings.cased), settings.num_distinct, counts)
    if not words:
        raise InputError("training a vocabulary: the texts contain no words; check the source and its cleaning")
    counts["distinct words"] += len(words)
    inventory = _LEARNERS[settings.kind](words, settings, counts)
    counts["tokens"] += len(inventory.tokens)
    if len(inventory.tokens) < settings.vocab_size:
        counts["tokens missing: too little text for vocab_size"] += settings.vocab_size - len(inventory.tokens)
    return kind.build(inventory, settings.cased)


# ---------------------------------------------------------------- characters


def _alphabet(
    words: Mapping[str, int], settings: VocabularySettings, counts: Counts, cost: Callable[[str], int] = lambda _: 1
) -> list[str]:
    """Return the characters that get tokens, by code point: the most frequent that fit. `cost` is in tokens."""
    frequency: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            frequency[character] += count
    alphabet: list[str] = []
    num_free = settings.num_learnable_tokens
    for character, count in sorted(frequency.items(), key=lambda item: (-item[1], item[0])):
        reason = ""
        if count < settings.min_count:
            reason = f"fewer than {settings.min_count} occurrences"
        elif cost(character) > num_free or len(alphabet) == settings.num_characters:
            reason, num_free = "vocabulary full", 0
        if reason:
            counts[f"characters left out: {reason}"] += 1
            counts[f"occurrences of characters left out: {reason}"] += count
        else:
            alphabet.append(character)
            num_free -= cost(character)
    return sorted(alphabet)


def _single_character_words(settings: VocabularySettings) -> Callable[[str], bool]:
    """Return a test for characters that are always words: punctuation and Chinese. These need only one token."""
    split = word_splitter(get_kind(settings.kind).untrained_tokenizer(settings.cased))
    return lambda character: len(split(f"a{character}")) > 1


# ---------------------------------------------------------------- learners


def _learn_wordpiece(words: Mapping[str, int], settings: VocabularySettings, counts: Counts) -> Inventory:
    words = _remove_long_words(words, counts)
    is_word = _single_character_words(settings)
    alphabet = _alphabet(words, settings, counts, lambda character: 1 if is_word(character) else 2)
    continuing = [CONTINUATION_PREFIX + character for character in alphabet if not is_word(character)]
    symbols = [*alphabet, *continuing]
    symbol_ids = {symbol: symbol_id for symbol_id, symbol in enumerate(symbols)}

    def spell(word: str) -> list[int]:
        continuation_ids = [symbol_ids.get(CONTINUATION_PREFIX + character, BORDER) for character in word[1:]]
        return [symbol_ids.get(word[0], BORDER), *continuation_ids]

    merges = learn_merges(
        ((spell(word), count) for word, count in words.items()),
        symbols,
        lambda left, right: left + right.removeprefix(CONTINUATION_PREFIX),
        settings.num_learnable_tokens - len(symbols),
        settings.min_count,
    )
    return Inventory((*settings.reserved_tokens, *merges.symbols))


def _learn_bpe(words: Mapping[str, int], settings: VocabularySettings, counts: Counts) -> Inventory:
    is_word = _single_character_words(settings)
    alphabet = _alphabet(words, settings, counts, lambda character: 1 if is_word(character) else 2)
    non_final = [character for character in alphabet if not is_word(character)]
    symbols = [*non_final, *(character + WORD_END for character in alphabet)]
    symbol_ids = {symbol: symbol_id for symbol_id, symbol in enumerate(symbols)}

    def spell(word: str) -> list[int]:
        non_final_ids = [symbol_ids.get(character, BORDER) for character in word[:-1]]
        return [*non_final_ids, symbol_ids.get(word[-1] + WORD_END, BORDER)]

    return _learn_merge_inventory(((spell(word), count) for word, count in words.items()), symbols, settings)


def _learn_byte_bpe(words: Mapping[str, int], settings: VocabularySettings, counts: Counts) -> Inventory:
    # All 256 bytes get a token, so no text is unknown.
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    symbol_ids = {symbol: symbol_id for symbol_id, symbol in enumerate(symbols)}
    return _learn_merge_inventory(
        (([symbol_ids[byte] for byte in word], count) for word, count in words.items()), symbols, settings
    )


def _learn_merge_inventory(
    symbol_words: Iterable[tuple[list[int], int]], symbols: list[str], settings: VocabularySettings
) -> Inventory:
    merges = learn_merges(
        symbol_words,
        symbols,
        lambda left, right: left + right,
        settings.num_learnable_tokens - len(symbols),
        settings.min_count,
    )
    return Inventory((*settings.reserved_tokens, *merges.symbols), merges=merges.pairs)


# Tokens do not mix digits, letters, symbols and punctuation, as is SentencePiece's default: "▁the" and "," instead of
# "▁the,". A space mark belongs to the run after it.
_RUN = regex.compile(
    rf"{SPACE_MARK}?(?:\p{{N}}+|[^\P{{S}}{SPACE_MARK}]+|\p{{P}}+|[^\p{{N}}\p{{P}}\p{{S}}]+)|{SPACE_MARK}"
)


def _learn_unigram(words: Mapping[str, int], settings: VocabularySettings, counts: Counts) -> Inventory:
    characters = _alphabet(words, settings, counts)
    runs = _runs(words, set(characters))
    if len(runs) > MAX_UNIGRAM_WORDS:
        rarest = sorted(runs, key=lambda run: (-runs[run], run))[MAX_UNIGRAM_WORDS:]
        counts["words left out: unigram training uses the most frequent only"] += sum(runs[run] for run in rarest)
        for run in rarest:
            del runs[run]
    token_scores = learn_unigram(runs, characters, settings.num_learnable_tokens)
    scores = dict(token_scores)
    tokens = [*characters, *(token for token, _ in token_scores if len(token) > 1)]
    return Inventory(
        (*settings.reserved_tokens, *tokens),
        scores=(*(0.0 for _ in settings.reserved_tokens), *(scores[token] for token in tokens)),
    )


def _runs(words: Mapping[str, int], characters: set[str]) -> Counter[str]:
    """Split words into runs of one character class, also at characters outside the alphabet and at MAX_RUN_LENGTH."""
    runs: Counter[str] = Counter()
    for word, count in words.items():
        separated_word = word if characters.issuperset(word) else "".join(c if c in characters else "\0" for c in word)
        for part in separated_word.split("\0"):
            for run in _RUN.findall(part):
                for start in range(0, len(run), MAX_RUN_LENGTH):
                    runs[run[start : start + MAX_RUN_LENGTH]] += count
    return runs


def _learn_words(words: Mapping[str, int], settings: VocabularySettings, counts: Counts) -> Inventory:
    frequent = [word for word, count in words.items() if count >= settings.min_count]
    tokens = sorted(frequent, key=lambda word: (-words[word], word))[: settings.num_learnable_tokens]
    num_covered = sum(words[word] for word in tokens)
    counts["distinct words left out: too rare or vocabulary full"] += len(words) - len(tokens)
    counts["occurrences of words left out: too rare or vocabulary full"] += sum(words.values()) - num_covered
    return Inventory((*settings.reserved_tokens, *tokens))


def _remove_long_words(words: Mapping[str, int], counts: Counts) -> dict[str, int]:
    # A WordPiece tokenizer maps longer words to [UNK] without trying.
    remaining = {word: count for word, count in words.items() if len(word) <= MAX_WORD_LENGTH}
    if len(remaining) < len(words):
        counts[f"words left out: over {MAX_WORD_LENGTH} characters"] += sum(words.values()) - sum(remaining.values())
    return remaining


_LEARNERS: dict[str, Callable[[Mapping[str, int], VocabularySettings, Counts], Inventory]] = {
    "wordpiece": _learn_wordpiece,
    "bpe": _learn_bpe,
    "byte-bpe": _learn_byte_bpe,
    "unigram": _learn_unigram,
    "words": _learn_words,
    "jieba-words": _learn_words,
}
