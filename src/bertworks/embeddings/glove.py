"""Numbered words in, GloVe vectors out: pairs counted in bounded memory, then AdaGrad on their weighted squares.

The objective is the paper's (Pennington, Socher and Manning, 2014): for each pair that was met, the product of one
word's vector with the other's context vector, and their two biases, shall be the logarithm of its count; its square
error weighs min(1, count / x_max) ** alpha. A word's vector in the end is the sum of both of its own.

AdaGrad is that of the released tool: what it divides by are the squares of the rate times the gradient, not of the
gradient, and they begin at 1. So 0.05 is the rate at the beginning, and in the end a step is as long as with the
textbook's AdaGrad at a rate of 1. At 0.05 that one comes to rest earlier: after 25 epochs over 1.4 M words its cost was
0.0062, and the tool's 0.0052.

The tool takes one pair after another. Here a round of pairs is taken at once in which no word stands twice on the same
side, so that the outcome is that of taking them one by one.

V words, D the width, P the ordered pairs of a round. A word is a row of D + 2 numbers: its vector, its bias and 1; a
context: its vector, 1 and its bias. So the product of two such rows has both biases in it.
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

# Pairs after which progress is told.
_PROGRESS_INTERVAL = 2**20


def train_glove(
    stream: WordStream, settings: GloveSettings, work_folder: Path, report_progress: TrainingCallback
) -> TrainedVectors:
    """Count pairs, shuffle them, and train. Everything on disk goes to `work`."""
    generator = np.random.default_rng(settings.seed)
    pairs = _count_pairs(stream, settings, work_folder, report_progress, generator)
    before = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    glove = Glove(len(stream.words), settings)
    total = settings.epochs * pairs.num_pairs
    costs = []
    try:
        for epoch in range(settings.epochs):
            done, cost = epoch * pairs.num_pairs, 0.0
            for rounds in pairs.epoch(generator):
                for done_more, cost_more in glove.train_rounds(rounds):
                    done, cost = done + done_more, cost + cost_more
                    report_progress("training", done, total, "pairs")
            costs.append(cost / pairs.num_pairs)
    finally:
        torch.set_num_threads(before)
    return TrainedVectors(glove.table(), {"pairs": pairs.num_pairs, "costs": costs})


def _count_pairs(
    stream: WordStream,
    settings: GloveSettings,
    work_folder: Path,
    report_progress: TrainingCallback,
    generator: np.random.Generator,
) -> ShuffledPairs:
    most = max_pairs_in_memory(settings.memory_mb)
    counter = PairCounter(len(stream.words), settings.window, work_folder, most)
    done = 0
    for chunk in stream.chunks(counter.chunk_size):
        counter.add(chunk)
        done += len(chunk)
        report_progress("counting", done, stream.num_words + stream.num_contexts, "words")
    # half as many pairs a file, for they are laid out in both orders
    num_files = -(-2 * counter.num_pairs() // most) or 1
    return ShuffledPairs(counter.iter_sorted(), len(stream.words), num_files, work_folder, generator)


class Glove:
    """The model while it is trained."""

    def __init__(self, num_words: int, settings: GloveSettings) -> None:
        generator = np.random.default_rng([settings.seed, 1])
        self._settings = settings
        width = settings.vector_size
        self._words, self._contexts = (
            _init_parameters(generator.random((num_words, width + 2), dtype=np.float32), one)
            for one in (width + 1, width)
        )

    def table(self) -> npt.NDArray[np.float32]:
        """Return the sum of word and context vectors, (V, D)."""
        width = self._settings.vector_size
        table: npt.NDArray[np.float32] = (self._words[:, 0, :width] + self._contexts[:, 0, :width]).numpy()
        return table

    def train_rounds(self, rounds: Rounds) -> Iterator[tuple[int, float]]:
        """Learn from all rounds. Every now and then yield how many pairs there were, and the sum of their costs: half
        the weighted square of what each was missed by when it was met."""
        firsts, seconds = (torch.from_numpy(side).long() for side in (rounds.firsts, rounds.seconds))
        counts = torch.from_numpy(rounds.counts)
        logs = counts.log()
        weights = (counts / self._settings.x_max).clamp_(max=1.0).pow_(self._settings.alpha)
        paces = weights * self._settings.learning_rate
        misses = torch.empty_like(logs)
        start = told = 0
        for end in rounds.ends.tolist():
            own = slice(start, end)
            misses[own] = self._step(firsts[own], seconds[own], logs[own], paces[own])
            start = end
            if end - told >= _PROGRESS_INTERVAL or end == len(logs):
                costs = 0.5 * weights[told:end] * misses[told:end].square()
                yield end - told, float(costs.sum(dtype=torch.float64))
                told = end

    def _step(self, firsts: Tensor, seconds: Tensor, logs: Tensor, learning_rates: Tensor) -> Tensor:
        """Learn from one round, and return by how much each of its pairs was missed, (P,)."""
        own = self._words.index_select(0, firsts), self._contexts.index_select(0, seconds)  # (P, 2, D + 2)
        (words, seen_words), (contexts, seen_contexts) = (rows.unbind(1) for rows in own)
        misses = (words * contexts).sum(1).sub_(logs)
        pulls = (misses * learning_rates)[:, None]
        of_words, of_contexts = contexts * pulls, words * pulls
        words.addcmul_(of_words, seen_words.rsqrt(), value=-1)
        contexts.addcmul_(of_contexts, seen_contexts.rsqrt(), value=-1)
        seen_words.addcmul_(of_words, of_words)
        seen_contexts.addcmul_(of_contexts, of_contexts)
        self._words.index_copy_(0, firsts, own[0])
        self._contexts.index_copy_(0, seconds, own[1])
        return misses


def _init_parameters(random_values: npt.NDArray[np.float32], constant_column: int) -> Tensor:
    """Return (V, 2, D + 2): the numbers of words or contexts, drawn in 0..1 and made small, and what AdaGrad has seen
    of each: 1.

    Of the number that is always 1 it has seen infinite squares, so that it never changes.
    """
    rows = torch.ones(len(random_values), 2, random_values.shape[1])
    rows[:, 0] = (torch.from_numpy(random_values) - 0.5) / (random_values.shape[1] - 1)
    rows[:, 0, constant_column] = 1.0
    rows[:, 1, constant_column] = torch.inf
    return rows
