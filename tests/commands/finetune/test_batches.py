"""The examples of a step: each once an epoch, grouped by length, the same for a seed, split where memory asks."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bertworks.commands.finetune import batches as questions
from bertworks.commands.finetune.batches import FinetuneBatches
from bertworks.sampling.masking import Masker, MaskSettings
from bertworks.sampling.windows import Window, WindowSpan
from bertworks.tasks.classify import Classify
from bertworks.tasks.contract import Features, InputSequence
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.tokenizer import Tokenizer

WORDS = [f"w{number}" for number in range(90)]
TOKENIZER = Tokenizer.from_backend(
    wordpiece_backend(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS], cased=False)
)
TASK = Classify(("no", "yes"))


def question(number: int, length: int) -> Features:
    """An example whose second piece tells its number."""
    ids = np.full(length, 50)
    ids[:2] = 2, 5 + number
    ids[-1] = 3
    window = Window(ids, np.zeros(length, dtype=np.int64), (WindowSpan(0, length - 2, 1),))
    return Features(sequences=(InputSequence.from_window(window),), label=number % 2)


def drawer(lengths: list[int], batch: int = 4, seed: int = 0) -> FinetuneBatches:
    return FinetuneBatches(
        [question(number, length) for number, length in enumerate(lengths)], TASK, TOKENIZER, batch, seed
    )


def numbers_in(found: list) -> list[int]:
    return [int(row[1]) - 5 for batch in found for row in batch.ids]


LENGTHS = [3 + (number * 7) % 20 for number in range(30)]


def test_every_epoch_shows_each_example_once_in_another_order():
    one = drawer(LENGTHS)
    assert one.num_steps == 8  # 30 examples, 4 a step
    epochs = [
        [number for step in range(8) for number in numbers_in(one.get_batches(0, 8 * epoch + step))] for epoch in (0, 1)
    ]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(30))
    assert epochs[0] != epochs[1]


def test_a_step_depends_on_seed_and_number_alone():
    one, other, third = drawer(LENGTHS), drawer(LENGTHS), drawer(LENGTHS, seed=1)
    drawn = [numbers_in(one.get_batches(0, step)) for step in range(16)]
    assert [numbers_in(other.get_batches(0, step)) for step in reversed(range(16))] == drawn[::-1]
    assert [numbers_in(third.get_batches(0, step)) for step in range(16)] != drawn


def test_examples_of_similar_length_are_drawn_together():
    one = drawer(LENGTHS)
    spreads = [
        int(batch.lengths.max() - batch.lengths.min()) for step in range(8) for batch in one.get_batches(0, step)
    ]
    assert max(spreads) <= 5  # by chance four of 3..22 would spread over more than ten


def test_labels_follow_their_examples_through_the_sorting():
    for batch in drawer(LENGTHS).get_batches(0, 3):
        assert batch.groups is not None
        found = batch.labels["class"][batch.groups]
        assert torch.equal(found, (batch.input_ids[:, 1] - 5) % 2)


def test_examples_that_share_a_row_are_drawn_together_and_a_step_has_as_many_as_asked_on_average():
    parts = tuple(replace(question(number, 10), num_examples=3) for number in range(20))
    whole = Features(sequences=tuple(row for part in parts for row in part.sequences), num_examples=60, parts=parts)
    one = FinetuneBatches([whole], TASK, TOKENIZER, 12, 0)
    assert one.num_steps == 5  # 12 examples are four rows
    drawn = [numbers_in(one.get_batches(0, step)) for step in range(5)]
    assert [len(step) for step in drawn] == [4] * 5
    assert sorted(number for step in drawn for number in step) == list(range(20))
    assert FinetuneBatches([whole], TASK, TOKENIZER, 1, 0).num_steps == 20  # at least a row
    assert len(list(one.sequences)) == 20


def test_a_step_with_too_many_places_is_split(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(questions, "_MAX_POSITIONS", 40)
    found = drawer([20, 20, 20, 20]).get_batches(0, 0)
    assert [len(batch.input_ids) for batch in found] == [2, 2]
    assert sorted(numbers_in(found)) == [0, 1, 2, 3]


def test_a_masked_copy_hides_other_places_in_every_step_and_leaves_the_rows_alone():
    one = drawer([20, 20, 20, 20])
    one.corruption = Masker(TOKENIZER, MaskSettings(mask_prob=0.5))
    (first,), (second,) = one.get_batches(0, 0), one.get_batches(0, 1)
    assert first.auxiliary_batch is not None
    assert second.auxiliary_batch is not None
    assert first.auxiliary_batch.positions is not None
    true = first.input_ids.flatten()[first.auxiliary_batch.positions]
    assert torch.equal(true, first.auxiliary_batch.targets)
    assert 4 * 7 <= len(true) <= 4 * 11  # half of 18 pieces in each of four rows
    assert not torch.equal(first.auxiliary_batch.positions, second.auxiliary_batch.positions)
    again = drawer([20, 20, 20, 20])
    again.corruption = one.corruption
    assert torch.equal(again.get_batches(0, 0)[0].auxiliary_batch.input_ids, first.auxiliary_batch.input_ids)
