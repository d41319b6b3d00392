"""The training batches of a fine-tuning run: Features in, the micro-batches of any step out.

The batches of a step depend only on the seed and the step, so a resumed run sees the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from bertworks.sampling.batch import Batch, collate_examples
from bertworks.sampling.example import Example
from bertworks.sampling.loading import Corruption
from bertworks.tasks.batching import batch_of_features
from bertworks.tasks.contract import Features, InputSequence, Task
from bertworks.tasks.distillation import Distillation
from bertworks.vocabulary.tokenizer import Tokenizer

# Examples are sorted by length within pools of this many batches: little padding, and still random batches.
_POOL_BATCHES = 50
# Positions computed at once. A step with more is split into micro-batches, which changes memory and nothing else.
_MAX_POSITIONS = 16_384
# Kind of vocabulary -> how a token begins that begins a word; WordPiece marks the others.
_WORD_START_MARKS = {"unigram": "▁", "byte-bpe": "Ġ"}
_CONTINUATION_MARK = "##"
# Added to a step: the keys of random numbers that are drawn for it; those of epochs are below.
_CORRUPTION_KEY, _DISTILLATION_KEY = 2**32, 2**33


class FinetuneBatches:
    """Samples the examples of each step, grouped by length; with a corruption, also an auxiliary batch of the same
    sequences with language-model targets; with a distillation, also a batch of that.

    Where one sequence holds several examples, as documents hold sentences, the number of sequences is chosen so that a
    batch has `batch_size` examples on average.
    """

    def __init__(
        self, all_features: Sequence[Features], task: Task, tokenizer: Tokenizer, batch_size: int, seed: int
    ) -> None:
        self._features = [part for features in all_features for part in features.training_parts]
        self._task = task
        self._tokenizer = tokenizer
        num_examples = sum(features.num_examples for features in self._features)
        self._batch_size = max(1, round(batch_size * len(self._features) / num_examples))
        self._seed = seed
        self._lengths = np.array([features.num_tokens for features in self._features])
        self._epoch: tuple[int, list[np.ndarray]] | None = None
        self.corruption: Corruption | None = None
        self.distillation: Distillation | None = None

    @property
    def num_steps(self) -> int:
        """The number of steps per epoch."""
        return -(-len(self._features) // self._batch_size)

    @property
    def features(self) -> Sequence[Features]:
        """What training samples one by one."""
        return self._features

    @property
    def sequences(self) -> Iterator[InputSequence]:
        """All training sequences."""
        return (sequence for features in self._features for sequence in features.sequences)

    def get_batches(self, phase: int, step: int) -> list[Batch]:
        """Return the micro-batches of a step."""
        epoch, index = divmod(step, self.num_steps)
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, self._epoch_batches(epoch))
        batch_features = [self._features[number] for number in self._epoch[1][index]]
        batches = [self._collate(micro_batch, step) for micro_batch in _split_micro_batches(batch_features)]
        if self.distillation is not None:
            key = [self._seed, _DISTILLATION_KEY + step]
            batches.append(self.distillation.make_batch(np.random.Generator(np.random.Philox(key=key))))
        return batches

    def get_lm_batches(self, phase: int, step: int) -> list[Batch]:
        """Return the micro-batches of a step with the targets of the corruption alone, without labels of the task."""
        batches = [batch.auxiliary_batch for batch in self.get_batches(phase, step)]
        return [batch for batch in batches if batch is not None]

    def _epoch_batches(self, epoch: int) -> list[np.ndarray]:
        """Return the batches of an epoch: shuffled, sorted by length within pools, and the batches shuffled again."""
        generator = np.random.Generator(np.random.Philox(key=[self._seed, epoch]))
        order = generator.permutation(len(self._features))
        size = self._batch_size * _POOL_BATCHES
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
        """Return the same sequences with language-model targets."""
        assert self.corruption is not None
        generator = np.random.Generator(np.random.Philox(key=[self._seed, _CORRUPTION_KEY + step]))
        examples = [
            self._example_of(
                batch.input_ids[index, :length].numpy().astype(np.int32),
                batch.token_type_ids[index, :length].numpy().astype(np.int8),
            )
            for index, length in enumerate(batch.lengths.tolist())
        ]
        masked_examples = [self.corruption.mask(example, generator) for example in examples]
        return collate_examples(examples, masked_examples, self._tokenizer.specials.pad)

    def _example_of(self, input_ids: npt.NDArray[np.int32], token_type_ids: npt.NDArray[np.int8]) -> Example:
        tokens = [self._tokenizer.tokens[token_id] for token_id in input_ids]
        is_special = np.isin(input_ids, np.array(self._tokenizer.specials.ids))
        mark = _WORD_START_MARKS.get(self._tokenizer.kind)
        if mark is None:
            word_starts = np.array([not token.startswith(_CONTINUATION_MARK) for token in tokens])
        else:
            word_starts = np.array([token.startswith(mark) for token in tokens])
        word_starts[1:] |= is_special[:-1]  # the first token of a text, whatever its mark
        return Example(
            input_ids=input_ids, token_type_ids=token_type_ids, word_starts=word_starts, is_special=is_special
        )


def _split_micro_batches(all_features: Sequence[Features]) -> Iterator[list[Features]]:
    """Yield groups of features, each within the budget of positions unless a single one exceeds it."""
    group: list[Features] = []
    max_length = num_sequences = 0
    for features in all_features:
        length = max(sequence.num_tokens for sequence in features.sequences)
        if group and (num_sequences + len(features.sequences)) * max(max_length, length) > _MAX_POSITIONS:
            yield group
            group, max_length, num_sequences = [], 0, 0
        group.append(features)
        max_length, num_sequences = max(max_length, length), num_sequences + len(features.sequences)
    if group:
        yield group
