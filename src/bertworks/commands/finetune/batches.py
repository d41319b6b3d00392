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
from bertworks.sampling.loading import Corruption
from bertworks.tasks.batching import batch_of_features
from bertworks.tasks.contract import Features, InputSequence, Task
from bertworks.vocabulary.tokenizer import Tokenizer

# Examples of similar length are looked for among so many batches, so that chance keeps the upper hand.
_POOL = 50
# Places computed at once; a step with more is done in several micro-batches, which changes nothing but memory.
_MAX_POSITIONS = 16_384


class FinetuneBatches:
    """Draws the examples of a step, grouped by length; with a hider also a copy of them that is asked about pieces.

    Where several examples stand in one row, as sentences do, so many rows are drawn that they hold `batch` examples on
    average.
    """

    def __init__(
        self, all_features: Sequence[Features], task: Task, tokenizer: Tokenizer, batch_size: int, seed: int
    ) -> None:
        self._features = [part for question in all_features for part in question.training_parts]
        self._task = task
        self._tokenizer = tokenizer
        num_examples = sum(question.num_examples for question in self._features)
        self._batch_size = max(1, round(batch_size * len(self._features) / num_examples))
        self._seed = seed
        self._lengths = np.array([question.num_tokens for question in self._features])
        self._epoch: tuple[int, list[np.ndarray]] | None = None
        self.corruption: Corruption | None = None

    @property
    def num_steps(self) -> int:
        """How many steps an epoch has."""
        return -(-len(self._features) // self._batch_size)

    @property
    def sequences(self) -> Iterator[InputSequence]:
        """All rows that are drawn from."""
        return (row for question in self._features for row in question.sequences)

    def get_batches(self, phase: int, step: int) -> list[Batch]:
        """Return the micro-batches of a step."""
        epoch, place = divmod(step, self.num_steps)
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, self._epoch_batches(epoch))
        chosen = [self._features[number] for number in self._epoch[1][place]]
        return [self._collate(group, step) for group in _split_micro_batches(chosen)]

    def _epoch_batches(self, epoch: int) -> list[np.ndarray]:
        """Return the batches of an epoch: shuffled, sorted by length within pools, and the batches shuffled again."""
        generator = np.random.Generator(np.random.Philox(key=[self._seed, epoch]))
        order = generator.permutation(len(self._features))
        size = self._batch_size * _POOL
        pools = [order[start : start + size] for start in range(0, len(order), size)]
        order = np.concatenate([pool[np.argsort(-self._lengths[pool], kind="stable")] for pool in pools])
        batches = [order[start : start + self._batch_size] for start in range(0, len(order), self._batch_size)]
        return [batches[number] for number in generator.permutation(len(batches))]

    def _collate(self, all_features: Sequence[Features], step: int) -> Batch:
        batch = batch_of_features(all_features, self._task, self._tokenizer.specials.pad)
        if self.corruption is None:
            return batch
        return replace(batch, auxiliary_batch=self._corrupt(batch, step))

    def _corrupt(self, batch: Batch, step: int) -> Batch:
        """Return the same rows, asked about their pieces."""
        assert self.corruption is not None
        generator = np.random.Generator(np.random.Philox(key=[self._seed, 2**32 + step]))
        ids, places, targets = batch.input_ids.clone(), [], []
        specials = np.array(self._tokenizer.specials.ids)
        for row, length in enumerate(batch.lengths.tolist()):
            own = batch.input_ids[row, :length].numpy().astype(np.int32)
            continues = np.array([self._tokenizer.tokens[number].startswith("##") for number in own])
            example = Example(
                own, batch.token_type_ids[row, :length].numpy().astype(np.int8), ~continues, np.isin(own, specials)
            )
            hidden = self.corruption.mask(example, generator)
            ids[row, :length] = torch.from_numpy(hidden.input_ids.astype(np.int64))
            places.append(hidden.positions.astype(np.int64) + row * ids.shape[1])
            targets.append(hidden.targets.astype(np.int64))
        found = torch.from_numpy(np.concatenate(places)), torch.from_numpy(np.concatenate(targets))
        return Batch(ids, batch.token_type_ids, batch.lengths, positions=found[0], targets=found[1])


def _split_micro_batches(all_features: Sequence[Features]) -> Iterator[list[Features]]:
    """Yield groups of questions, each of at most a budget of places unless one alone has more."""
    group: list[Features] = []
    longest = num_rows = 0
    for question in all_features:
        width = max(row.num_tokens for row in question.sequences)
        if group and (num_rows + len(question.sequences)) * max(longest, width) > _MAX_POSITIONS:
            yield group
            group, longest, num_rows = [], 0, 0
        group.append(question)
        longest, num_rows = max(longest, width), num_rows + len(question.sequences)
    if group:
        yield group
