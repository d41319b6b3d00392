"""The training examples of a fine-tuning run: Questions in, the micro-batches of any step out.

What a step learns from follows from the seed and its number alone, so a resumed run sees what it would have seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from bertworks.sampling.batch import Batch
from bertworks.sampling.example import Example
from bertworks.sampling.loading import Hider
from bertworks.tasks.batching import batch_of_questions
from bertworks.tasks.contract import Asked, Question, Task
from bertworks.vocabulary.tokenizer import Tokenizer

# Examples of similar length are looked for among so many batches, so that chance keeps the upper hand.
_POOL = 50
# Places computed at once; a step with more is done in several micro-batches, which changes nothing but memory.
_MOST_PLACES = 16_384


class Drawer:
    """Draws the examples of a step, grouped by length; with a hider also a copy of them that is asked about pieces.

    Where several examples stand in one row, as sentences do, so many rows are drawn that they hold `batch` examples on
    average.
    """

    def __init__(self, questions: Sequence[Question], task: Task, tokenizer: Tokenizer, batch: int, seed: int) -> None:
        self._questions = [part for question in questions for part in question.drawn]
        self._task = task
        self._tokenizer = tokenizer
        num_examples = sum(question.num_examples for question in self._questions)
        self._batch = max(1, round(batch * len(self._questions) / num_examples))
        self._seed = seed
        self._lengths = np.array([question.num_pieces for question in self._questions])
        self._epoch: tuple[int, list[np.ndarray]] | None = None
        self.hider: Hider | None = None

    @property
    def num_steps(self) -> int:
        """How many steps an epoch has."""
        return -(-len(self._questions) // self._batch)

    @property
    def rows(self) -> Iterator[Asked]:
        """All rows that are drawn from."""
        return (row for question in self._questions for row in question.rows)

    def draw(self, phase: int, step: int) -> list[Batch]:
        """Return the micro-batches of a step."""
        epoch, place = divmod(step, self.num_steps)
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, self._arranged(epoch))
        chosen = [self._questions[number] for number in self._epoch[1][place]]
        return [self._made(group, step) for group in _in_budget(chosen)]

    def _arranged(self, epoch: int) -> list[np.ndarray]:
        """Return the batches of an epoch: shuffled, sorted by length within pools, and the batches shuffled again."""
        generator = np.random.Generator(np.random.Philox(key=[self._seed, epoch]))
        order = generator.permutation(len(self._questions))
        size = self._batch * _POOL
        pools = [order[start : start + size] for start in range(0, len(order), size)]
        order = np.concatenate([pool[np.argsort(-self._lengths[pool], kind="stable")] for pool in pools])
        batches = [order[start : start + self._batch] for start in range(0, len(order), self._batch)]
        return [batches[number] for number in generator.permutation(len(batches))]

    def _made(self, questions: Sequence[Question], step: int) -> Batch:
        batch = batch_of_questions(questions, self._task, self._tokenizer.specials.pad)
        if self.hider is None:
            return batch
        return replace(batch, masked=self._masked(batch, step))

    def _masked(self, batch: Batch, step: int) -> Batch:
        """Return the same rows, asked about their pieces."""
        assert self.hider is not None
        generator = np.random.Generator(np.random.Philox(key=[self._seed, 2**32 + step]))
        ids, places, targets = batch.ids.clone(), [], []
        specials = np.array(self._tokenizer.specials.ids)
        for row, length in enumerate(batch.lengths.tolist()):
            own = batch.ids[row, :length].numpy().astype(np.int32)
            continues = np.array([self._tokenizer.pieces[number].startswith("##") for number in own])
            example = Example(
                own, batch.segments[row, :length].numpy().astype(np.int8), ~continues, np.isin(own, specials)
            )
            hidden = self.hider.hide(example, generator)
            ids[row, :length] = torch.from_numpy(hidden.ids.astype(np.int64))
            places.append(hidden.places.astype(np.int64) + row * ids.shape[1])
            targets.append(hidden.targets.astype(np.int64))
        found = torch.from_numpy(np.concatenate(places)), torch.from_numpy(np.concatenate(targets))
        return Batch(ids, batch.segments, batch.lengths, places=found[0], targets=found[1])


def _in_budget(questions: Sequence[Question]) -> Iterator[list[Question]]:
    """Yield groups of questions, each of at most a budget of places unless one alone has more."""
    group: list[Question] = []
    longest = num_rows = 0
    for question in questions:
        width = max(row.num_pieces for row in question.rows)
        if group and (num_rows + len(question.rows)) * max(longest, width) > _MOST_PLACES:
            yield group
            group, longest, num_rows = [], 0, 0
        group.append(question)
        longest, num_rows = max(longest, width), num_rows + len(question.rows)
    if group:
        yield group
