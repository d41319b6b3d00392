"""Numbered words in, Word2Vec vectors out, through gensim: skip-gram or CBOW with negative sampling.

With one thread the same text and seed give the same bits; with more, gensim's threads write over each other's steps,
and no two runs are alike.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bertworks.embeddings.static_settings import OBJECTIVES, Tell, Trained, Word2VecSettings
from bertworks.embeddings.word_stream import WordStream
from bertworks.errors import MissingPartError

# gensim reads no more of a stretch than this.
_MOST_WORDS = 10_000


def require_gensim() -> Any:
    """Return gensim's module of Word2Vec, or say how to get it."""
    try:
        from gensim.models import word2vec
    except ImportError as error:
        raise MissingPartError("gensim", "vectors", "training Word2Vec") from error
    return word2vec


def train_word2vec(stream: WordStream, settings: Word2VecSettings, work: Path, tell: Tell) -> Trained:
    """Train on all stretches of the stream, `epochs` times. Nothing is written to `work`."""
    del work
    model = require_gensim().Word2Vec(
        vector_size=settings.width,
        window=settings.window,
        sg=OBJECTIVES.index(settings.objective),
        negative=settings.negative,
        sample=settings.sample,
        alpha=settings.rate,
        min_alpha=settings.last_rate,
        min_count=1,  # rare words have been left out already
        sorted_vocab=0,  # it would turn equally frequent words around
        epochs=settings.epochs,
        seed=settings.seed,
        workers=settings.threads,
        hashfxn=_hash,
    )
    model.build_vocab_from_freq(dict(zip(stream.words, stream.counts.tolist(), strict=True)))
    assert tuple(model.wv.index_to_key) == stream.words, "gensim must not order words anew"
    model.train(
        _Contexts(stream, settings.epochs, tell),
        total_words=stream.num_words,
        epochs=settings.epochs,
    )
    return Trained(np.asarray(model.wv.vectors, dtype=np.float32), {"threads": settings.threads})


class _Contexts:
    """What gensim reads once an epoch: lists of words."""

    def __init__(self, stream: WordStream, epochs: int, tell: Tell) -> None:
        self._stream, self._total, self._tell = stream, stream.num_words * epochs, tell
        self._done = 0

    def __iter__(self) -> Iterator[list[str]]:
        for words in self._stream.contexts(_MOST_WORDS):
            yield words
            self._done += len(words)
            self._tell("training", self._done, self._total, "words")


def _hash(text: str) -> int:
    """A hash that is the same in every process, as Python's own is not."""
    return zlib.crc32(text.encode(errors="surrogatepass"))
