"""Learn a vocabulary from text: clean texts in, a ready `tokenizers.Tokenizer` out.

The same texts give the same bytes, whatever the number of cores: words are counted first and worked on in the order of
their text, and nothing depends on threads or hash tables. Pieces are numbered: special pieces, free slots, single
characters by code point, then the rest in the order they were learnt (unigram and words: likeliest first).
Memory is bounded by the number of different words (see `counting`, `merging`, `unigram`), not by the amount of text.
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

# Unigram training looks at all places of a piece in a word at once; more words would take more than 1.5 GB.
MAX_UNIGRAM_WORDS = 1_000_000


@dataclass(frozen=True, slots=True)
class VocabularySettings:
    """What vocabulary to learn. `size` counts everything: special pieces and free slots too.

    `min_count`: a character, a word or a merge that occurs less often gets no piece.
    `num_unused`: free slots [unused0], [unused1]… which `extend` fills first (wordpiece only).
    `num_characters`: how many characters get pieces at most; without it all that are frequent enough and fit `size`.
    `num_distinct`: how many different words are remembered while counting.
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
        least = len(kind.specials.order) + self.num_unused + (256 if self.kind == "byte-bpe" else 1)
        if self.num_unused < 0:
            raise SettingsError(f"vocabulary num_unused = {self.num_unused}: must be 0 or more")
        if self.num_unused and self.kind != "wordpiece":
            raise SettingsError(
                f"vocabulary num_unused = {self.num_unused}: only a wordpiece vocabulary has free slots, not"
                f" {self.kind}; set num_unused = 0"
            )
        if self.vocab_size < least:
            raise SettingsError(
                f"vocabulary size = {self.vocab_size}: a {self.kind} vocabulary needs at least {least} for its special"
                " pieces, free slots and characters; raise size"
            )
        for name in ("min_count", "num_distinct", "num_characters"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingsError(f"vocabulary {name} = {value}: must be 1 or more")

    @property
    def reserved_tokens(self) -> tuple[str, ...]:
        """The pieces that come first: special ones and free slots."""
        return (*get_kind(self.kind).specials.order, *(unused_token(number) for number in range(self.num_unused)))

    @property
    def num_learnable_tokens(self) -> int:
        """How many pieces are to be learnt."""
        return self.vocab_size - len(self.reserved_tokens)


def train(texts: Iterable[str], settings: VocabularySettings, counts: Counts | None = None) -> tokenizers.Tokenizer:
    """Learn a vocabulary. When the text cannot fill `size`, fewer pieces come out.

    `counts` says how many are missing, and which characters and words were left out.
    """
    counts = Counts() if counts is None else counts
    kind = get_kind(settings.kind)
    reader = kind.untrained_tokenizer(settings.cased)
    words = count_words(texts, reader, kind.chunks(settings.cased), settings.num_distinct, counts)
    if not words:
        raise InputError("training a vocabulary: the texts hold not a single word; check the source and its cleaning")
    counts["different words"] += len(words)
    inventory = _LEARNERS[settings.kind](words, settings, counts)
    counts["pieces"] += len(inventory.tokens)
    if len(inventory.tokens) < settings.vocab_size:
        counts["pieces missing: too little text for the size"] += settings.vocab_size - len(inventory.tokens)
    return kind.build(inventory, settings.cased)


# ---------------------------------------------------------------- characters


def _alphabet(
    words: Mapping[str, int], settings: VocabularySettings, counts: Counts, cost: Callable[[str], int] = lambda _: 1
) -> list[str]:
    """The characters that get pieces, by code point: the most frequent, as many as fit. `cost` is in pieces."""
    frequency: Counter[str] = Counter()
    for word, number in words.items():
        for character in word:
            frequency[character] += number
    kept: list[str] = []
    room = settings.num_learnable_tokens
    for character, number in sorted(frequency.items(), key=lambda item: (-item[1], item[0])):
        reason = ""
        if number < settings.min_count:
            reason = f"fewer than {settings.min_count} occurrences"
        elif cost(character) > room or len(kept) == settings.num_characters:
            reason, room = "no room", 0
        if reason:
            counts[f"characters left out: {reason}"] += 1
            counts[f"occurrences of characters left out: {reason}"] += number
        else:
            kept.append(character)
            room -= cost(character)
    return sorted(kept)


def _stands_alone(settings: VocabularySettings) -> Callable[[str], bool]:
    """Whether a character is always a word of its own: punctuation and Chinese. Such a one needs only one piece."""
    split = word_splitter(get_kind(settings.kind).untrained_tokenizer(settings.cased))
    return lambda character: len(split(f"a{character}")) > 1


# ---------------------------------------------------------------- learners


def _learn_wordpiece(words: Mapping[str, int], settings: VocabularySettings, counts: Counts) -> Inventory:
    words = _without_long(words, counts)
    alone = _stands_alone(settings)
    alphabet = _alphabet(words, settings, counts, lambda character: 1 if alone(character) else 2)
    continuing = [CONTINUATION_PREFIX + character for character in alphabet if not alone(character)]
    symbols = [*alphabet, *continuing]
    number = {symbol: place for place, symbol in enumerate(symbols)}

    def spell(word: str) -> list[int]:
        rest = [number.get(CONTINUATION_PREFIX + character, BORDER) for character in word[1:]]
        return [number.get(word[0], BORDER), *rest]

    merges = learn_merges(
        ((spell(word), count) for word, count in words.items()),
        symbols,
        lambda left, right: left + right.removeprefix(CONTINUATION_PREFIX),
        settings.num_learnable_tokens - len(symbols),
        settings.min_count,
    )
    return Inventory((*settings.reserved_tokens, *merges.symbols))


def _learn_bpe(words: Mapping[str, int], settings: VocabularySettings, counts: Counts) -> Inventory:
    alone = _stands_alone(settings)
    alphabet = _alphabet(words, settings, counts, lambda character: 1 if alone(character) else 2)
    inner = [character for character in alphabet if not alone(character)]
    symbols = [*inner, *(character + WORD_END for character in alphabet)]
    number = {symbol: place for place, symbol in enumerate(symbols)}

    def spell(word: str) -> list[int]:
        front = [number.get(character, BORDER) for character in word[:-1]]
        return [*front, number.get(word[-1] + WORD_END, BORDER)]

    return _learn_merge_inventory(((spell(word), count) for word, count in words.items()), symbols, settings)


def _learn_byte_bpe(words: Mapping[str, int], settings: VocabularySettings, counts: Counts) -> Inventory:
    # All 256 bytes get a piece, seen or not: no text can be unknown.
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    number = {symbol: place for place, symbol in enumerate(symbols)}
    return _learn_merge_inventory(
        (([number[byte] for byte in word], count) for word, count in words.items()), symbols, settings
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


# Within a word, numbers, letters and signs are learnt apart, as SentencePiece does by default: ALBERT's "▁the" and ","
# instead of "▁the,". The mark of a space goes with what follows it.
_RUN = regex.compile(
    rf"{SPACE_MARK}?(?:\p{{N}}+|[^\P{{S}}{SPACE_MARK}]+|\p{{P}}+|[^\p{{N}}\p{{P}}\p{{S}}]+)|{SPACE_MARK}"
)


def _learn_unigram(words: Mapping[str, int], settings: VocabularySettings, counts: Counts) -> Inventory:
    characters = _alphabet(words, settings, counts)
    runs = _runs(words, set(characters))
    if len(runs) > MAX_UNIGRAM_WORDS:
        rarest = sorted(runs, key=lambda run: (-runs[run], run))[MAX_UNIGRAM_WORDS:]
        counts["words left out: unigram training takes the most frequent only"] += sum(runs[run] for run in rarest)
        for run in rarest:
            del runs[run]
    learnt = learn_unigram(runs, characters, settings.num_learnable_tokens)
    scores = dict(learnt)
    ordered = [*characters, *(piece for piece, _ in learnt if len(piece) > 1)]
    return Inventory(
        (*settings.reserved_tokens, *ordered),
        scores=(*(0.0 for _ in settings.reserved_tokens), *(scores[piece] for piece in ordered)),
    )


def _runs(words: Mapping[str, int], characters: set[str]) -> Counter[str]:
    """What unigram training sees: runs of one sort, cut at characters without a piece and to a bounded length."""
    runs: Counter[str] = Counter()
    for word, count in words.items():
        known = word if characters.issuperset(word) else "".join(c if c in characters else "\0" for c in word)
        for part in known.split("\0"):
            for run in _RUN.findall(part):
                for start in range(0, len(run), MAX_RUN_LENGTH):
                    runs[run[start : start + MAX_RUN_LENGTH]] += count
    return runs


def _learn_words(words: Mapping[str, int], settings: VocabularySettings, counts: Counts) -> Inventory:
    frequent = [word for word, count in words.items() if count >= settings.min_count]
    kept = sorted(frequent, key=lambda word: (-words[word], word))[: settings.num_learnable_tokens]
    covered = sum(words[word] for word in kept)
    counts["different words left out: too rare or no room"] += len(words) - len(kept)
    counts["occurrences of words left out: too rare or no room"] += sum(words.values()) - covered
    return Inventory((*settings.reserved_tokens, *kept))


def _without_long(words: Mapping[str, int], counts: Counts) -> dict[str, int]:
    # A WordPiece tokenizer calls longer words unknown unseen, so nothing is to be learnt from them.
    kept = {word: count for word, count in words.items() if len(word) <= MAX_WORD_LENGTH}
    if len(kept) < len(words):
        counts[f"words left out: over {MAX_WORD_LENGTH} characters"] += sum(words.values()) - sum(kept.values())
    return kept


_LEARNERS: dict[str, Callable[[Mapping[str, int], VocabularySettings, Counts], Inventory]] = {
    "wordpiece": _learn_wordpiece,
    "bpe": _learn_bpe,
    "byte-bpe": _learn_byte_bpe,
    "unigram": _learn_unigram,
    "words": _learn_words,
    "jieba-words": _learn_words,
}
