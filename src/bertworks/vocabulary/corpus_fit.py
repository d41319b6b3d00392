"""How well a vocabulary fits a corpus: a Document and a Tokenizer in, counts of tokens and unknown words out."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from bertworks.text.document import Document
from bertworks.text.statistics import TextStatistics
from bertworks.vocabulary.tokenizer import Tokenizer

# The lengths at which BERT is usually trained, without [CLS] and [SEP].
LENGTHS = (128, 512)
# Unknown words are collected from at most this many sentences per block: that takes a second tokenization.
_MAX_SENTENCES = 200
# Limit of distinct unknown words; above it a sample of them is kept, chosen by hash, each with its exact count.
_MAX_WORDS = 20_000
_MAX_WORD_LENGTH = 40

_CAPITAL = re.compile("[A-Z]")
_LATIN = re.compile("[A-Za-z]")
_IDEOGRAPH = re.compile("[\u3400-\u9fff]")


@dataclass(slots=True)
class UnknownWords:
    """Counts of the words behind unknown tokens, in the sentences that were examined."""

    words: Counter[str] = field(default_factory=Counter)
    num_sentences: int = 0

    def merge(self, other: UnknownWords) -> None:
        self.words.update(other.words)
        self.num_sentences += other.num_sentences
        if len(self.words) > _MAX_WORDS:
            sample = sorted(self.words, key=_hash)[:_MAX_WORDS]
            self.words = Counter({word: self.words[word] for word in sample})

    def most_frequent(self, number: int) -> tuple[str, ...]:
        by_count = sorted(self.words.items(), key=lambda item: (-item[1], item[0]))
        return tuple(word for word, _ in by_count[:number])


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyProfile:
    """What a vocabulary is made for, judged by its tokens."""

    size: int
    kind: str
    cased: bool
    capital_ratio: float
    num_ideographs: int


def profile_vocabulary(tokenizer: Tokenizer) -> VocabularyProfile:
    """Return the ratio of upper-case tokens among Latin ones, and the number of tokens with ideographs."""
    special_ids = set(tokenizer.specials.ids)
    tokens = [
        token
        for token_id, token in enumerate(tokenizer.tokens)
        if token_id not in special_ids and not token.startswith(("[", "<"))
    ]
    num_latin = sum(_LATIN.search(token) is not None for token in tokens)
    num_capital = sum(_CAPITAL.search(token) is not None for token in tokens)
    return VocabularyProfile(
        size=tokenizer.vocab_size,
        kind=tokenizer.kind,
        cased=tokenizer.cased,
        capital_ratio=num_capital / num_latin if num_latin else 0.0,
        num_ideographs=sum(_IDEOGRAPH.search(token) is not None for token in tokens),
    )


def measure_fit(document: Document, tokenizer: Tokenizer, statistics: TextStatistics, unknown: UnknownWords) -> None:
    """Tokenize a document and add its counts to `tally` and `unknown`."""
    flat = tokenizer.encode_sentences(document.sentences)
    num_tokens = len(flat.input_ids)
    is_unknown = flat.input_ids == tokenizer.specials.unknown
    num_unknown = int(is_unknown.sum())
    statistics.totals["tokens"] += num_tokens
    statistics.totals["unknown tokens"] += num_unknown
    statistics.totals["words of the vocabulary"] += int(flat.word_starts.sum())
    statistics.add_length("tokens per document", num_tokens)
    for length in LENGTHS:
        statistics.totals[f"documents longer than {length} tokens"] += num_tokens > length
    if not num_unknown:
        return
    indices = np.unique(np.searchsorted(flat.sentence_ends, np.flatnonzero(is_unknown), side="right"))
    for index in indices[: _MAX_SENTENCES - unknown.num_sentences]:
        sentence = document.sentences[index]
        unknown.num_sentences += 1
        unknown.words.update(_count_unknown_words(sentence, tokenizer))
        statistics.add_excerpt("unknown tokens", sentence, document.source)


def _count_unknown_words(sentence: str, tokenizer: Tokenizer) -> Mapping[str, int]:
    tokens = tokenizer.tokenize(sentence)
    offsets = tokens.offsets[tokens.input_ids == tokenizer.specials.unknown].tolist()
    return Counter(sentence[start:end][:_MAX_WORD_LENGTH] for start, end in offsets)


def _hash(word: str) -> bytes:
    return hashlib.blake2b(word.encode(errors="surrogatepass"), digest_size=8).digest()
