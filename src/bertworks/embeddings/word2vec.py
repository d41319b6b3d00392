"""Word2Vec through gensim: word ids in, vectors out; skip-gram or CBOW with negative sampling.

With one thread the same text and seed give the same bits. With more, gensim's threads overwrite each other's updates,
and no two runs are equal.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bertworks.embeddings.static_settings import OBJECTIVES, TrainedVectors, TrainingCallback, Word2VecSettings
from bertworks.embeddings.word_stream import WordStream
from bertworks.errors import MissingDependencyError

# gensim ignores the words of a context beyond this number.
_MAX_WORDS = 10_000


def require_gensim() -> Any:
    """Import gensim's word2vec module; raise an error with the install command if it is missing."""
    try:
        from gensim.models import word2vec
    except ImportError as error:
        raise MissingDependencyError("gensim", "vectors", "training Word2Vec") from error
    return word2vec


def train_word2vec(
    stream: WordStream, settings: Word2VecSettings, work_folder: Path, report_progress: TrainingCallback
) -> TrainedVectors:
    """Train on all contexts of the stream, `epochs` times. `work_folder` is not used."""
    del work_folder
    model = require_gensim().Word2Vec(
        vector_size=settings.vector_size,
        window=settings.window,
        sg=OBJECTIVES.index(settings.objective),
        negative=settings.negative,
        sample=settings.sample,
        alpha=settings.learning_rate,
        min_alpha=settings.min_learning_rate,
        min_count=1,  # rare words are removed already
        sorted_vocab=0,  # it would change the order of equally frequent words
        epochs=settings.epochs,
        seed=settings.seed,
        workers=settings.threads,
        hashfxn=_hash,
    )
    model.build_vocab_from_freq(dict(zip(stream.words, stream.counts.tolist(), strict=True)))
    assert tuple(model.wv.index_to_key) == stream.words, "gensim must not change the order of words"
    model.train(
        _Contexts(stream, settings.epochs, report_progress),
        total_words=stream.num_words,
        epochs=settings.epochs,
    )
    return TrainedVectors(np.asarray(model.wv.vectors, dtype=np.float32), {"threads": settings.threads})


class _Contexts:
    """The contexts as lists of words; gensim iterates over them once per epoch."""

    def __init__(self, stream: WordStream, epochs: int, report_progress: TrainingCallback) -> None:
        self._stream, self._total, self._report_progress = stream, stream.num_words * epochs, report_progress
        self._num_done = 0

    def __iter__(self) -> Iterator[list[str]]:
        for words in self._stream.contexts(_MAX_WORDS):
            yield words
            self._num_done += len(words)
            self._report_progress("training", self._num_done, self._total, "words")


def _hash(text: str) -> int:
    """Hash a string independently of the process, unlike Python's hash()."""
    return zlib.crc32(text.encode(errors="surrogatepass"))
