"""Numbered words in, GloVe vectors out: pairs counted in bounded memory, then AdaGrad on their weighted squares.

The objective is the paper's (Pennington, Socher and Manning, 2014): for each pair that was met, the product of one
word's vector with the other's context vector, and their two biases, shall be the logarithm of its count; its square
error weighs min(1, count / x_max) ** alpha. A word's vector in the end is the sum of both of its own.

The original tool takes one pair after another. Here a batch of shuffled pairs is taken at once. For a word that stands
in several of them both gradients and their squares are added up, pair by pair, so that AdaGrad's pace is that of the
original: squares of the sums would take a single short step where the original takes many.

V words, D the width, P the pairs of a batch in both orders, U the different words among them.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from bertworks.features.cooccurrence import PairCounter, Shuffled, ShuffledPairs, memory_in_pairs
from bertworks.features.static_settings import GloveSettings, Tell, Trained
from bertworks.features.word_stream import WordStream


def train_glove(stream: WordStream, settings: GloveSettings, work: Path, tell: Tell) -> Trained:
    """Count pairs, shuffle them, and train. Everything on disk goes to `work`."""
    generator = np.random.default_rng(settings.seed)
    pairs = _counted(stream, settings, work, tell, generator)
    before = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    glove = Glove(len(stream.words), settings)
    costs = []
    try:
        for epoch in range(settings.epochs):
            done, cost = epoch * pairs.num_pairs, 0.0
            for batch in pairs.epoch(generator, settings.batch):
                cost += glove.step(batch)
                done += len(batch)
                tell("training", done, settings.epochs * pairs.num_pairs, "pairs")
            costs.append(cost / pairs.num_pairs)
    finally:
        torch.set_num_threads(before)
    return Trained(glove.table(), {"pairs": pairs.num_pairs, "costs": costs})


def _counted(
    stream: WordStream, settings: GloveSettings, work: Path, tell: Tell, generator: np.random.Generator
) -> ShuffledPairs:
    most = memory_in_pairs(settings.memory_mb)
    counter = PairCounter(len(stream.words), settings.window, work, most)
    done = 0
    for chunk in stream.chunks(counter.chunk_size):
        counter.add(chunk)
        done += len(chunk)
        tell("counting", done, stream.num_words + stream.num_contexts, "words")
    num_files = -(-counter.num_pairs() // most) or 1
    return ShuffledPairs(counter.merged(), len(stream.words), num_files, work, generator)


class _Sums(NamedTuple):
    """Sums over the pairs of each word: of gradients, and of their squares; (U, D) for vectors, (U, 1) for biases."""

    gradients: Tensor
    squares: Tensor


class _Pulled(NamedTuple):
    """What a batch asks of the vectors and of the biases of its words."""

    vectors: _Sums
    biases: _Sums


class _Side:
    """The vectors and biases of words, or of contexts, and the squares of gradients that AdaGrad has seen."""

    def __init__(self, num_words: int, width: int, generator: np.random.Generator) -> None:
        drawn = (generator.random((num_words, width + 1), dtype=np.float32) - np.float32(0.5)) / width
        self.vectors = torch.from_numpy(np.ascontiguousarray(drawn[:, :width]))  # (V, D)
        self.biases = torch.from_numpy(np.ascontiguousarray(drawn[:, width:]))  # (V, 1)
        self._seen = [torch.ones_like(self.vectors), torch.ones_like(self.biases)]

    def descend(self, rows: Tensor, pulled: _Pulled, rate: float) -> None:
        """One step of AdaGrad for `rows` (U,), each of which is there once."""
        for values, seen, part in zip((self.vectors, self.biases), self._seen, pulled, strict=True):
            squares = part.squares.add_(seen.index_select(0, rows))
            seen.index_copy_(0, rows, squares)
            values.index_add_(0, rows, part.gradients.div_(squares.sqrt_()), alpha=-rate)


class Glove:
    """The model while it is trained."""

    def __init__(self, num_words: int, settings: GloveSettings) -> None:
        generator = np.random.default_rng([settings.seed, 1])
        self._settings = settings
        self._words = _Side(num_words, settings.width, generator)
        self._contexts = _Side(num_words, settings.width, generator)

    def table(self) -> npt.NDArray[np.float32]:
        """Return the sum of word and context vectors, (V, D)."""
        table: npt.NDArray[np.float32] = (self._words.vectors + self._contexts.vectors).numpy()
        return table

    def step(self, batch: Shuffled) -> float:
        """Learn from a batch of pairs, each in both orders, and return the sum of half its weighted square errors."""
        met = _Met(batch, len(self._words.vectors))
        misses = met.products(self._words.vectors, self._contexts.vectors)  # (P,)
        misses += self._words.biases.view(-1).index_select(0, met.rows)
        misses += self._contexts.biases.view(-1).index_select(0, met.columns)
        misses -= met.counts.log()
        weights = (met.counts / self._settings.x_max).clamp_(max=1.0).pow_(self._settings.alpha)
        pulls = weights * misses  # what each pair pulls at its vectors, (P,)
        of_words = met.sums(pulls, self._contexts.vectors)
        of_contexts = met.sums(met.turned(pulls), self._words.vectors)
        self._words.descend(met.present, of_words, self._settings.rate)
        self._contexts.descend(met.present, of_contexts, self._settings.rate)
        return 0.5 * float((pulls * misses).sum(dtype=torch.float64))


class _Met:
    """The pairs of a batch in both orders, sorted by their first word, like the rows of a sparse matrix (V, V).

    As each pair is there in both orders, the columns of that matrix are its rows with the pairs turned around.
    """

    def __init__(self, batch: Shuffled, num_words: int) -> None:
        first, second = (torch.from_numpy(np.ascontiguousarray(batch[name])) for name in ("first", "second"))
        others = (first != second).nonzero().view(-1)  # a word beside itself has one order only
        rows = torch.cat([first, second[others]])
        self.rows, self._order = torch.sort(rows, stable=True)  # (P,)
        self.columns = torch.cat([second, first[others]])[self._order]
        counts = torch.from_numpy(np.ascontiguousarray(batch["count"]))
        self.counts = torch.cat([counts, counts[others]])[self._order]
        turned = torch.cat([torch.arange(len(first)), others])
        turned[others] = torch.arange(len(first), len(rows))
        self._turned = turned
        lengths = torch.bincount(self.rows, minlength=num_words)
        self._starts = torch.zeros(num_words + 1, dtype=torch.int32)
        self._starts[1:] = lengths.cumsum(0)
        self.present = lengths.nonzero().view(-1)  # (U,)

    def products(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the product of each pair's two vectors, (P,)."""
        size = (len(rows), len(columns))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            places = torch.sparse_csr_tensor(
                self._starts, self.columns, torch.zeros(len(self.columns)), size, check_invariants=False
            )
            return torch.sparse.sampled_addmm(places, rows, columns.t(), beta=0.0).values()

    def turned(self, values: Tensor) -> Tensor:
        """Return, for each pair, the value of the same pair in the other order."""
        given = torch.empty_like(values)
        given[self._order] = values
        return given[self._turned][self._order]

    def sums(self, pulls: Tensor, vectors: Tensor) -> _Pulled:
        """Return, for each first word, the sums of pulls times the second words' vectors, and those of the pulls."""
        starts = self._starts.index_select(0, self.present)
        squares = pulls.square()
        return _Pulled(
            _Sums(
                embedding_bag(self.columns, vectors, starts, mode="sum", per_sample_weights=pulls),
                embedding_bag(self.columns, vectors.square(), starts, mode="sum", per_sample_weights=squares),
            ),
            _Sums(self._by_word(pulls), self._by_word(squares)),
        )

    def _by_word(self, values: Tensor) -> Tensor:
        sums = torch.bincount(self.rows, weights=values).index_select(0, self.present)
        return sums.to(torch.float32).view(-1, 1)
