"""Pieces from a model of the `tokenizers` library, for every kind but BERT's WordPiece: text in, pieces out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tokenizers

from bertworks.vocabulary.flat import FlatPieces, PlacedPiece, WordBoundaries, piece_type


class BackendPieces:
    """Cuts text with a `tokenizers.Tokenizer`: byte-level BPE, BPE, Unigram, whole words."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._type = piece_type(backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[PlacedPiece]:
        encoding = self._backend.encode(text, add_special_tokens=False)
        placed = []
        before = None
        for number, (start, end), word in zip(encoding.ids, encoding.offsets, encoding.word_ids, strict=True):
            placed.append(PlacedPiece(number, start, end, word != before))
            before = word
        return placed

    def encode_sentences(self, sentences: Sequence[str], boundaries: WordBoundaries | None = None) -> FlatPieces:
        encodings = self._backend.encode_batch_fast(_carry_spaces(sentences), add_special_tokens=False)
        counts = np.fromiter(map(len, encodings), dtype=np.int64, count=len(encodings))
        total = int(counts.sum())
        ids = np.fromiter((number for one in encodings for number in one.ids), dtype=self._type, count=total)
        words = np.fromiter((-1 if w is None else w for one in encodings for w in one.word_ids), np.int64, total)
        ends = np.cumsum(counts)
        word_starts = np.ones(total, dtype=np.bool_)
        word_starts[1:] = words[1:] != words[:-1]
        word_starts[(ends - counts)[counts > 0]] = True
        return FlatPieces(ids, ends, word_starts)


def _carry_spaces(sentences: Sequence[str]) -> list[str]:
    """Move the space behind a sentence to the front of the next: these kinds write it into the next piece.

    A new line begins without one, as when each line is read by itself.
    """
    carried = []
    space = ""
    for sentence in sentences:
        body = sentence.rstrip()
        carried.append(space + body)
        space = " " if sentence.endswith(" ") else ""
    return carried
