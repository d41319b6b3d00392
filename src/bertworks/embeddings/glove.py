"""GloVe: word ids in, vectors out; pairs are counted in bounded memory, then trained with AdaGrad.

The objective is the paper's (Pennington, Socher and Manning, 2014): for each pair, the dot product of one word's vector
and the other's context vector plus their two biases shall be the logarithm of the count; the squared error has the
weight min(1, count / x_max) ** alpha. The final vector of a word is the sum of its word and context vectors.

AdaGrad is that of the released tool: it accumulates the squares of learning rate times gradient, not of the gradient,
starting at 1. So 0.05 is the initial learning rate, and asymptotically a step is as large as in textbook AdaGrad with a
learning rate of 1. Textbook AdaGrad at 0.05 converges too early: after 25 epochs over 1.4 M words its cost was 0.0062,
and the tool's 0.0052.

The tool updates one pair after another. Here the pairs of a round are updated at once; no word occurs twice on the same
side of a round, so the result is that of one update after another.

V words, D vector size, P ordered pairs of a round. A word is a row of D + 2 numbers: its vector, its bias and 1; a
context: its vector, 1 and its bias. So the dot product of two rows includes both biases.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertworks.embeddings.cooccurrence import PairCounter, Rounds, ShuffledPairs, max_pairs_in_memory
from bertworks.embeddings.static_settings import GloveSettings, TrainedVectors, TrainingCallback
from bertworks.embeddings.word_stream import WordStream

# Progress is reported after this many pairs.
_PROGRESS_INTERVAL = 2**20


def train_glove(
    stream: WordStream, settings: GloveSettings, work_folder: Path, report_progress: TrainingCallback
) -> TrainedVectors:
    """Count pairs, shuffle them, and train. Temporary files are written to `work_folder`."""
    generator = np.random.default_rng(settings.seed)
    pairs = _count_pairs(stream, settings, work_folder, report_progress, generator)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    glove = Glove(len(stream.words), settings)
    total = settings.epochs * pairs.num_pairs
    costs = []
    try:
        for epoch in range(settings.epochs):
            done, cost = epoch * pairs.num_pairs, 0.0
            for rounds in pairs.epoch(generator):
                for num_pairs, partial_cost in glove.train_rounds(rounds):
                    done, cost = done + num_pairs, cost + partial_cost
                    report_progress("training", done, total, "pairs")
            costs.append(cost / pairs.num_pairs)
    finally:
        torch.set_num_threads(num_threads)
    return TrainedVectors(glove.table(), {"pairs": pairs.num_pairs, "costs": costs})


def _count_pairs(
    stream: WordStream,
    settings: GloveSettings,
    work_folder: Path,
    report_progress: TrainingCallback,
    generator: np.random.Generator,
) -> ShuffledPairs:
    max_pairs = max_pairs_in_memory(settings.memory_mb)
    counter = PairCounter(len(stream.words), settings.window, work_folder, max_pairs)
    done = 0
    for chunk in stream.chunks(counter.chunk_size):
        counter.add(chunk)
        done += len(chunk)
        report_progress("counting", done, stream.num_words + stream.num_contexts, "words")
    # half as many pairs per file, since each is used in both orders
    num_files = -(-2 * counter.num_pairs() // max_pairs) or 1
    return ShuffledPairs(counter.iter_sorted(), len(stream.words), num_files, work_folder, generator)


class Glove:
    """The parameters of GloVe and their AdaGrad state."""

    def __init__(self, num_words: int, settings: GloveSettings) -> None:
        generator = np.random.default_rng([settings.seed, 1])
        self._settings = settings
        size = settings.vector_size
        self._words, self._contexts = (
            _init_parameters(generator.random((num_words, size + 2), dtype=np.float32), constant_column)
            for constant_column in (size + 1, size)
        )

    def table(self) -> npt.NDArray[np.float32]:
        """Return the sum of word and context vectors, (V, D)."""
        size = self._settings.vector_size
        table: npt.NDArray[np.float32] = (self._words[:, 0, :size] + self._contexts[:, 0, :size]).numpy()
        return table

    def train_rounds(self, rounds: Rounds) -> Iterator[tuple[int, float]]:
        """Train on all rounds. Yield, at intervals, the number of pairs and the sum of their costs since the last time.

        The cost of a pair is half its weighted squared error before the update.
        """
        firsts, seconds = (torch.from_numpy(side).long() for side in (rounds.firsts, rounds.seconds))
        counts = torch.from_numpy(rounds.counts)
        logs = counts.log()
        weights = (counts / self._settings.x_max).clamp_(max=1.0).pow_(self._settings.alpha)
        learning_rates = weights * self._settings.learning_rate
        errors = torch.empty_like(logs)
        start = report_start = 0
        for end in rounds.ends.tolist():
            span = slice(start, end)
            errors[span] = self._step(firsts[span], seconds[span], logs[span], learning_rates[span])
            start = end
            if end - report_start >= _PROGRESS_INTERVAL or end == len(logs):
                costs = 0.5 * weights[report_start:end] * errors[report_start:end].square()
                yield end - report_start, float(costs.sum(dtype=torch.float64))
                report_start = end

    def _step(self, firsts: Tensor, seconds: Tensor, logs: Tensor, learning_rates: Tensor) -> Tensor:
        """Update the parameters with one round; return the error of each pair before the update (P,)."""
        rows = self._words.index_select(0, firsts), self._contexts.index_select(0, seconds)  # (P, 2, D + 2)
        (words, word_squares), (contexts, context_squares) = (side.unbind(1) for side in rows)
        errors = (words * contexts).sum(1).sub_(logs)
        scales = (errors * learning_rates)[:, None]
        word_updates, context_updates = contexts * scales, words * scales
        words.addcmul_(word_updates, word_squares.rsqrt(), value=-1)
        contexts.addcmul_(context_updates, context_squares.rsqrt(), value=-1)
        word_squares.addcmul_(word_updates, word_updates)
        context_squares.addcmul_(context_updates, context_updates)
        self._words.index_copy_(0, firsts, rows[0])
        self._contexts.index_copy_(0, seconds, rows[1])
        return errors


def _init_parameters(random_values: npt.NDArray[np.float32], constant_column: int) -> Tensor:
    """Return (V, 2, D + 2): the initial parameters, scaled from 0..1, and AdaGrad's accumulated squares, 1.

    The constant column of ones has infinite squares, so it is never updated.
    """
    rows = torch.ones(len(random_values), 2, random_values.shape[1])
    rows[:, 0] = (torch.from_numpy(random_values) - 0.5) / (random_values.shape[1] - 1)
    rows[:, 0, constant_column] = 1.0
    rows[:, 1, constant_column] = torch.inf
    return rows
