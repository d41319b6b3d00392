"""A clean Document and a Tokenizer in, how well they fit out: pieces, unknown ones and their words, lengths."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from bertworks.text.document import Document
from bertworks.text.tally import TextStatistics
from bertworks.vocabulary.tokenizer import Tokenizer

# Lengths at which BERT is usually trained; [CLS] and [SEP] are not counted.
LENGTHS = (128, 512)
# In each block, unknown words are looked at in so many sentences: finding them costs a second reading.
_MAX_SENTENCES = 200
# Different unknown words that are remembered: above that a sample of them, chosen by hash, each with its exact count.
_MAX_WORDS = 20_000
_MAX_WORD_LENGTH = 40

_CAPITAL = re.compile("[A-Z]")
_LATIN = re.compile("[A-Za-z]")
_IDEOGRAPH = re.compile("[\u3400-\u9fff]")


@dataclass(slots=True)
class UnknownWords:
    """Words behind the unknown pieces, in the sentences that were looked at, and how often each occurs."""

    words: Counter[str] = field(default_factory=Counter)
    num_sentences: int = 0

    def merge(self, other: UnknownWords) -> None:
        self.words.update(other.words)
        self.num_sentences += other.num_sentences
        if len(self.words) > _MAX_WORDS:
            kept = sorted(self.words, key=_hash)[:_MAX_WORDS]
            self.words = Counter({word: self.words[word] for word in kept})

    def most_frequent(self, number: int) -> tuple[str, ...]:
        ordered = sorted(self.words.items(), key=lambda item: (-item[1], item[0]))
        return tuple(word for word, _ in ordered[:number])


@dataclass(frozen=True, slots=True)
class VocabularyProfile:
    """What a vocabulary was made for, told by its pieces."""

    size: int
    kind: str
    cased: bool
    capital_ratio: float
    num_ideographs: int


def profile_vocabulary(tokenizer: Tokenizer) -> VocabularyProfile:
    """Return what the pieces of a vocabulary tell: how many of the Latin ones have capitals, how many are Chinese."""
    special = set(tokenizer.specials.ids)
    plain = [
        piece
        for number, piece in enumerate(tokenizer.tokens)
        if number not in special and not piece.startswith(("[", "<"))
    ]
    num_latin = sum(_LATIN.search(piece) is not None for piece in plain)
    num_capital = sum(_CAPITAL.search(piece) is not None for piece in plain)
    num_ideographs = sum(_IDEOGRAPH.search(piece) is not None for piece in plain)
    rate = num_capital / num_latin if num_latin else 0.0
    return VocabularyProfile(tokenizer.vocab_size, tokenizer.kind, tokenizer.cased, rate, num_ideographs)


def measure_fit(document: Document, tokenizer: Tokenizer, tally: TextStatistics, unknown: UnknownWords) -> None:
    """Cut a document into pieces and add the figures to the tally."""
    flat = tokenizer.encode_sentences(document.sentences)
    num_pieces = len(flat.input_ids)
    is_unknown = flat.input_ids == tokenizer.specials.unknown
    num_unknown = int(is_unknown.sum())
    tally.totals["pieces"] += num_pieces
    tally.totals["unknown pieces"] += num_unknown
    tally.totals["words of the vocabulary"] += int(flat.word_starts.sum())
    tally.add_length("pieces a document", num_pieces)
    for length in LENGTHS:
        tally.totals[f"documents longer than {length} pieces"] += num_pieces > length
    if not num_unknown:
        return
    places = np.unique(np.searchsorted(flat.sentence_ends, np.flatnonzero(is_unknown), side="right"))
    for place in places[: _MAX_SENTENCES - unknown.num_sentences]:
        sentence = document.sentences[place]
        unknown.num_sentences += 1
        unknown.words.update(_count_unknown_words(sentence, tokenizer))
        tally.add_excerpt("unknown pieces", sentence, document.source)


def _count_unknown_words(sentence: str, tokenizer: Tokenizer) -> Mapping[str, int]:
    encoding = tokenizer.encode(sentence)
    return Counter(
        sentence[offset[0] : offset[1]][:_MAX_WORD_LENGTH]
        for number, offset in zip(encoding.input_ids, encoding.offsets, strict=True)
        if number == tokenizer.specials.unknown and offset is not None
    )


def _hash(word: str) -> bytes:
    return hashlib.blake2b(word.encode(errors="surrogatepass"), digest_size=8).digest()
