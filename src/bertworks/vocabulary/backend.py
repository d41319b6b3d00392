"""Tokenization with a model of the `tokenizers` library, for all kinds but BERT's WordPiece: text in, tokens out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tokenizers

from bertworks.vocabulary.characters import IDEOGRAPH, SURROGATE
from bertworks.vocabulary.token_arrays import FlatTokens, TokenizedText, WordBoundaries, token_dtype
from bertworks.vocabulary.word_boundaries import jieba_words


class BackendModel:
    """Tokenizes with a `tokenizers.Tokenizer`: byte-level BPE, BPE, Unigram, whole words."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._dtype = token_dtype(backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> TokenizedText:
        encoding = self._backend.encode(text, add_special_tokens=False)
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        word_starts = np.array(_starts_by_word(encoding), dtype=np.bool_)
        return TokenizedText(np.array(encoding.ids, dtype=np.int64), offsets, word_starts)

    def encode_sentences(self, sentences: Sequence[str], boundaries: WordBoundaries | None = None) -> FlatTokens:
        """Return the tokens of many sentences; `boundaries`, if any, find words in sentences with ideographs."""
        texts = _carry_spaces(sentences)
        # Not `encode_batch_fast`: it leaves out words and offsets.
        encodings = self._backend.encode_batch(texts, add_special_tokens=False)
        word_starts: list[bool] = []
        for text, encoding in zip(texts, encodings, strict=True):
            if boundaries is not None and IDEOGRAPH.search(text):
                word_starts += _starts_by_boundary(encoding, boundaries(text).tolist())
            else:
                word_starts += _starts_by_word(encoding)
        input_ids, sentence_ends = _flatten(encodings, self._dtype)
        return FlatTokens(input_ids, sentence_ends, np.array(word_starts, dtype=np.bool_))


class JiebaModel:
    """Tokenizes into jieba's words. Punctuation splits a word further; every token begins a word."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._dtype = token_dtype(backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> TokenizedText:
        words = jieba_words(text)
        encoding = self._backend.encode([word for _, word in words], is_pretokenized=True, add_special_tokens=False)
        starts = np.array([words[index][0] for index in encoding.word_ids if index is not None], dtype=np.int64)
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2) + starts[:, None]
        return TokenizedText(np.array(encoding.ids, dtype=np.int64), offsets, np.ones(len(starts), dtype=np.bool_))

    def encode_sentences(self, sentences: Sequence[str], boundaries: WordBoundaries | None = None) -> FlatTokens:
        """Return the words of many sentences; `boundaries` are not needed."""
        texts = [[word for _, word in jieba_words(sentence)] for sentence in sentences]
        encodings = self._backend.encode_batch(texts, is_pretokenized=True, add_special_tokens=False)
        input_ids, sentence_ends = _flatten(encodings, self._dtype)
        return FlatTokens(input_ids, sentence_ends, np.ones(len(input_ids), dtype=np.bool_))


def _flatten(
    encodings: Sequence[tokenizers.Encoding], dtype: npt.DTypeLike
) -> tuple[npt.NDArray[np.integer], npt.NDArray[np.int64]]:
    """Return the concatenated token ids, and the index behind the last token of each encoding."""
    ends = np.cumsum(np.fromiter(map(len, encodings), dtype=np.int64, count=len(encodings)), dtype=np.int64)
    total = int(ends[-1]) if encodings else 0
    return np.fromiter((token_id for encoding in encodings for token_id in encoding.ids), dtype, total), ends


def _starts_by_word(encoding: tokenizers.Encoding) -> list[bool]:
    word_ids = encoding.word_ids
    return [index == 0 or word != word_ids[index - 1] for index, word in enumerate(word_ids)]


def _starts_by_boundary(encoding: tokenizers.Encoding, boundaries: list[bool]) -> list[bool]:
    """A token begins a word if a boundary is at its first character and the previous token has another start.

    The bytes of one character, and a space mark with the character behind it, all have the same start.
    """
    starts = [start for start, _ in encoding.offsets]
    return [
        index == 0 or (start != starts[index - 1] and start < len(boundaries) and boundaries[start])
        for index, start in enumerate(starts)
    ]


def _carry_spaces(sentences: Sequence[str]) -> list[str]:
    """Move the space at the end of a sentence to the front of the next: these kinds make it part of the next token.

    The first sentence of a line gets none, as when each line is tokenized by itself. Lone surrogates become U+FFFD.
    """
    texts = []
    space = ""
    for sentence in sentences:
        body = SURROGATE.sub("\ufffd", sentence.rstrip())
        texts.append(space + body if body else "")
        if sentence:
            space = " " if sentence.endswith(" ") else ""
    return texts
