"""Training batches: each example once per epoch, grouped by length, fixed by the seed, split into micro-batches."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bertworks.commands.finetune import batches as batches_module
from bertworks.commands.finetune.batches import FinetuneBatches
from bertworks.sampling.batch import Batch
from bertworks.sampling.example import Example
from bertworks.sampling.masking import MaskedExample, Masker, MaskSettings
from bertworks.sampling.permutation import Permuter
from bertworks.sampling.windows import Window, WindowSpan
from bertworks.tasks.classify import Classify
from bertworks.tasks.contract import Features, InputSequence
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.tokenizer import Tokenizer
from bertworks.vocabulary.training import VocabularySettings, train

WORDS = [f"w{number}" for number in range(90)]
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TOKENIZER = Tokenizer.from_backend(wordpiece_backend([*SPECIALS, *WORDS], cased=False))
TASK = Classify(labels=("no", "yes"))


def features_of(number: int, length: int) -> Features:
    """An example whose second token encodes its number."""
    input_ids = np.full(length, 50)
    input_ids[:2] = 2, 5 + number
    input_ids[-1] = 3
    window = Window(input_ids, np.zeros(length, dtype=np.int64), (WindowSpan(0, length - 2, 1),))
    return Features(sequences=(InputSequence.from_window(window),), label=number % 2)


def make_batches(lengths: list[int], batch_size: int = 4, seed: int = 0) -> FinetuneBatches:
    all_features = [features_of(number, length) for number, length in enumerate(lengths)]
    return FinetuneBatches(all_features, TASK, TOKENIZER, batch_size, seed)


def numbers_in(micro_batches: list[Batch]) -> list[int]:
    return [int(sequence[1]) - 5 for batch in micro_batches for sequence in batch.input_ids]


LENGTHS = [3 + (number * 7) % 20 for number in range(30)]


def test_every_epoch_has_each_example_once_in_another_order():
    batches = make_batches(LENGTHS)
    assert batches.num_steps == 8  # 30 examples, 4 per step
    epochs = [
        [number for step in range(8) for number in numbers_in(batches.get_batches(0, 8 * epoch + step))]
        for epoch in (0, 1)
    ]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(30))
    assert epochs[0] != epochs[1]


def test_a_step_depends_only_on_seed_and_number():
    batches, same, other_seed = make_batches(LENGTHS), make_batches(LENGTHS), make_batches(LENGTHS, seed=1)
    numbers = [numbers_in(batches.get_batches(0, step)) for step in range(16)]
    assert [numbers_in(same.get_batches(0, step)) for step in reversed(range(16))] == numbers[::-1]
    assert [numbers_in(other_seed.get_batches(0, step)) for step in range(16)] != numbers


def test_examples_of_similar_length_are_batched_together():
    batches = make_batches(LENGTHS)
    differences = [
        int(batch.lengths.max() - batch.lengths.min()) for step in range(8) for batch in batches.get_batches(0, step)
    ]
    assert max(differences) <= 5  # four random lengths of 3..22 would differ by more than ten


def test_labels_follow_their_examples_through_the_sorting():
    for batch in make_batches(LENGTHS).get_batches(0, 3):
        assert batch.groups is not None
        labels = batch.labels["class"][batch.groups]
        assert torch.equal(labels, (batch.input_ids[:, 1] - 5) % 2)


def test_examples_that_share_a_sequence_count_toward_the_batch_size_on_average():
    parts = tuple(replace(features_of(number, 10), num_examples=3) for number in range(20))
    sequences = tuple(sequence for part in parts for sequence in part.sequences)
    document = Features(sequences=sequences, num_examples=60, parts=parts)
    batches = FinetuneBatches([document], TASK, TOKENIZER, 12, 0)
    assert batches.num_steps == 5  # 12 examples are four sequences
    steps = [numbers_in(batches.get_batches(0, step)) for step in range(5)]
    assert [len(numbers) for numbers in steps] == [4] * 5
    assert sorted(number for numbers in steps for number in numbers) == list(range(20))
    assert FinetuneBatches([document], TASK, TOKENIZER, 1, 0).num_steps == 20  # at least one sequence
    assert len(list(batches.sequences)) == 20


def test_a_step_with_too_many_positions_is_split_into_micro_batches(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batches_module, "_MAX_POSITIONS", 40)
    micro_batches = make_batches([20, 20, 20, 20]).get_batches(0, 0)
    assert [len(batch.input_ids) for batch in micro_batches] == [2, 2]
    assert sorted(numbers_in(micro_batches)) == [0, 1, 2, 3]


def test_language_model_batches_are_the_same_sequences_without_labels():
    batches = make_batches([20, 9, 20, 9])
    assert batches.get_lm_batches(0, 0) == []
    batches.corruption = Masker(TOKENIZER, MaskSettings(mask_prob=0.5))
    (task_batch,), (lm_batch,) = batches.get_batches(0, 0), batches.get_lm_batches(0, 0)
    assert lm_batch.labels == {}
    assert lm_batch.positions is not None
    assert lm_batch.targets is not None
    restored = lm_batch.input_ids.flatten().index_put((lm_batch.positions,), lm_batch.targets)
    assert torch.equal(restored, task_batch.input_ids.flatten())
    assert torch.equal(lm_batch.lengths, task_batch.lengths)


def test_a_permutation_is_batched_with_its_order():
    batches = make_batches([20, 9])
    batches.corruption = Permuter(TOKENIZER, MaskSettings(mask_prob=0.5))
    (batch,) = batches.get_lm_batches(0, 0)
    assert batch.permutation is not None
    assert batch.permutation.shape == (2, 20)
    # Of 18 and 7 ordinary tokens 9 and 4 are predicted, one after the other.
    assert [sorted(order[order > 0].tolist()) for order in batch.permutation] == [[*range(1, 10)], [*range(1, 5)]]


@pytest.mark.parametrize(
    ("tokenizer", "tokens", "starts"),
    [
        (
            Tokenizer.from_backend(wordpiece_backend([*SPECIALS, "sun", "##flower", "seed"], cased=False)),
            ["[CLS]", "##flower", "sun", "##flower", "seed", "[SEP]"],
            [1, 1, 0, 1],  # a window may begin inside a word; its rest counts as a word
        ),
        (
            Tokenizer.from_backend(
                train(["sun sunflower sunseed"] * 9, VocabularySettings(kind="unigram", vocab_size=24))
            ),
            ["[CLS]", "▁sun", "f", "l", "▁sun", "[SEP]"],
            [1, 0, 0, 1],
        ),
    ],
)
def test_words_begin_where_the_vocabulary_marks_it(tokenizer: Tokenizer, tokens: list[str], starts: list[int]):
    seen: list[Example] = []

    class Spy:
        def mask(self, example: Example, generator: np.random.Generator) -> MaskedExample:
            seen.append(example)
            return Masker(tokenizer).mask(example, generator)

    input_ids = np.array([tokenizer.tokens.index(token) for token in tokens])
    window = Window(input_ids, np.zeros(len(tokens), dtype=np.int64), (WindowSpan(0, len(tokens) - 2, 1),))
    features = Features(sequences=(InputSequence.from_window(window),), label=0)
    batches = FinetuneBatches([features], TASK, tokenizer, 1, 0)
    batches.corruption = Spy()
    batches.get_lm_batches(0, 0)
    assert seen[0].word_starts[1:-1].tolist() == [bool(start) for start in starts]


def test_the_auxiliary_batch_masks_other_positions_in_every_step():
    batches = make_batches([20, 20, 20, 20])
    batches.corruption = Masker(TOKENIZER, MaskSettings(mask_prob=0.5))
    (first,), (second,) = batches.get_batches(0, 0), batches.get_batches(0, 1)
    assert first.auxiliary_batch is not None
    assert second.auxiliary_batch is not None
    assert first.auxiliary_batch.positions is not None
    original = first.input_ids.flatten()[first.auxiliary_batch.positions]
    assert torch.equal(original, first.auxiliary_batch.targets)
    assert 4 * 7 <= len(original) <= 4 * 11  # half of 18 tokens in each of four sequences
    assert not torch.equal(first.auxiliary_batch.positions, second.auxiliary_batch.positions)
    same = make_batches([20, 20, 20, 20])
    same.corruption = batches.corruption
    assert torch.equal(same.get_batches(0, 0)[0].auxiliary_batch.input_ids, first.auxiliary_batch.input_ids)
