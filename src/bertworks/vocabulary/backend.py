"""Pieces from a model of the `tokenizers` library, for every kind but BERT's WordPiece: text in, pieces out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tokenizers

from bertworks.vocabulary.characters import IDEOGRAPH, SURROGATE
from bertworks.vocabulary.token_arrays import FlatTokens, TokenWithOffsets, WordBoundaries, token_dtype
from bertworks.vocabulary.word_boundaries import jieba_words


class BackendModel:
    """Cuts text with a `tokenizers.Tokenizer`: byte-level BPE, BPE, Unigram, whole words."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._dtype = token_dtype(backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[TokenWithOffsets]:
        encoding = self._backend.encode(text, add_special_tokens=False)
        begins = _starts_by_word(encoding)
        return [
            TokenWithOffsets(number, start, end, begins_word)
            for number, (start, end), begins_word in zip(encoding.ids, encoding.offsets, begins, strict=True)
        ]

    def encode_sentences(self, sentences: Sequence[str], boundaries: WordBoundaries | None = None) -> FlatTokens:
        """Return the pieces of many sentences as flat arrays; `boundaries`, if given, hold where ideographs are."""
        texts = _carry_spaces(sentences)
        # Not `encode_batch_fast`: it leaves out words and offsets.
        encodings = self._backend.encode_batch(texts, add_special_tokens=False)
        ends = np.cumsum(np.fromiter(map(len, encodings), dtype=np.int64, count=len(encodings)), dtype=np.int64)
        total = int(ends[-1]) if encodings else 0
        ids = np.fromiter((number for one in encodings for number in one.ids), dtype=self._dtype, count=total)
        word_starts: list[bool] = []
        for text, encoding in zip(texts, encodings, strict=True):
            if boundaries is not None and IDEOGRAPH.search(text):
                word_starts += _starts_by_boundary(encoding, boundaries(text).tolist())
            else:
                word_starts += _starts_by_word(encoding)
        return FlatTokens(ids, ends, np.array(word_starts, dtype=np.bool_))


class JiebaModel:
    """Cuts text into jieba's words, each of them a piece, or several where signs part it. Every piece is a word."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._dtype = token_dtype(backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[TokenWithOffsets]:
        words = jieba_words(text)
        found = self._backend.encode([word for _, word in words], is_pretokenized=True, add_special_tokens=False)
        begins = [words[word][0] for word in found.word_ids if word is not None]
        return [
            TokenWithOffsets(number, begin + start, begin + end, True)
            for number, begin, (start, end) in zip(found.ids, begins, found.offsets, strict=True)
        ]

    def encode_sentences(self, sentences: Sequence[str], boundaries: WordBoundaries | None = None) -> FlatTokens:
        """Return the words of many sentences as flat arrays; `boundaries` have nothing to add."""
        texts = [[word for _, word in jieba_words(sentence)] for sentence in sentences]
        found = self._backend.encode_batch(texts, is_pretokenized=True, add_special_tokens=False)
        ends = np.cumsum(np.fromiter(map(len, found), dtype=np.int64, count=len(found)), dtype=np.int64)
        total = int(ends[-1]) if found else 0
        ids = np.fromiter((number for one in found for number in one.ids), dtype=self._dtype, count=total)
        return FlatTokens(ids, ends, np.ones(total, dtype=np.bool_))


def _starts_by_word(encoding: tokenizers.Encoding) -> list[bool]:
    words = encoding.word_ids
    return [place == 0 or word != words[place - 1] for place, word in enumerate(words)]


def _starts_by_boundary(encoding: tokenizers.Encoding, boundaries: list[bool]) -> list[bool]:
    """A piece begins a word if a boundary stands at its first character and the piece before began elsewhere.

    The bytes of one character, and the mark of a space with what follows it, all begin at one place.
    """
    starts = [start for start, _ in encoding.offsets]
    return [
        place == 0 or (start != starts[place - 1] and start < len(boundaries) and boundaries[start])
        for place, start in enumerate(starts)
    ]


def _carry_spaces(sentences: Sequence[str]) -> list[str]:
    """Move the space behind a sentence to the front of the next: these kinds write it into the next piece.

    A new line begins without one, as when each line is read by itself. Lone surrogates are read as U+FFFD.
    """
    carried = []
    space = ""
    for sentence in sentences:
        body = SURROGATE.sub("\ufffd", sentence.rstrip())
        carried.append(space + body if body else "")
        if sentence:
            space = " " if sentence.endswith(" ") else ""
    return carried
