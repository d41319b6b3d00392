"""Permutation language modeling: which positions are predicted, and in which order."""

from collections import Counter

import numpy as np
import pytest

from bertworks.sampling.batch import collate_examples
from bertworks.sampling.example import Example
from bertworks.sampling.masking import MaskSettings
from bertworks.sampling.permutation import Permuter
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.tokenizer import Tokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SETTINGS = MaskSettings(mask_prob=1 / 6, whole_words=True, max_ngram=5)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    letters = [chr(number) for number in range(ord("a"), ord("z") + 1)]
    return Tokenizer.from_backend(
        wordpiece_backend([*SPECIALS, *letters, *(f"##{letter}" for letter in letters)], cased=True)
    )


def example_with(num_words: int, tokens_per_word: int = 2) -> Example:
    """[CLS] words of equal length [SEP]."""
    length = num_words * tokens_per_word + 2
    input_ids = np.arange(5, 5 + length, dtype=np.int32)
    word_starts, is_special = np.zeros(length, dtype=bool), np.zeros(length, dtype=bool)
    is_special[[0, -1]] = True
    word_starts[[0, -1, *range(1, length - 1, tokens_per_word)]] = True
    return Example(
        input_ids=input_ids,
        token_type_ids=np.zeros(length, dtype=np.int8),
        word_starts=word_starts,
        is_special=is_special,
    )


def test_nothing_is_masked_and_the_permutation_numbers_the_positions(tokenizer: Tokenizer):
    example = example_with(30)
    masked = Permuter(tokenizer, SETTINGS).mask(example, np.random.default_rng(1))
    assert np.array_equal(masked.input_ids, example.input_ids)
    assert np.array_equal(masked.targets, example.input_ids[masked.positions])
    assert len(masked.positions) == 10  # a sixth of 60
    assert masked.permutation is not None
    assert sorted(masked.permutation[masked.positions].tolist()) == list(range(1, 11))
    is_visible = np.ones(len(example), dtype=bool)
    is_visible[masked.positions] = False
    assert not masked.permutation[is_visible].any()
    assert not masked.permutation[example.is_special].any()


def test_the_same_generator_gives_the_same_order(tokenizer: Tokenizer):
    permuter, example = Permuter(tokenizer, SETTINGS), example_with(40)
    first, same, other = (permuter.mask(example, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert np.array_equal(first.permutation, same.permutation)  # type: ignore[arg-type]
    assert not np.array_equal(first.permutation, other.permutation)  # type: ignore[arg-type]


def test_a_sixth_of_the_tokens_is_predicted_in_whole_words_and_orders_are_uniform(tokenizer: Tokenizer):
    permuter, example = Permuter(tokenizer, SETTINGS), example_with(60)
    generator = np.random.default_rng(0)
    num_positions, firsts, runs = 0, Counter[int](), Counter[int]()
    counts = np.zeros(len(example))
    for _ in range(2_000):
        masked = permuter.mask(example, generator)
        assert masked.permutation is not None
        num_positions += len(masked.positions)
        counts[masked.positions] += 1
        firsts[int(np.argsort(masked.permutation[masked.positions])[0])] += 1
        words = set(((masked.positions - 1) // 2).tolist())
        assert all(2 * word + 1 in masked.positions and 2 * word + 2 in masked.positions for word in words)
        runs.update(run_lengths(words))
    assert abs(num_positions / (2_000 * 120) - 1 / 6) < 1e-3
    assert firsts.keys() == set(range(20))
    assert max(abs(count / 2_000 - 1 / 20) for count in firsts.values()) < 0.02
    assert max(abs(count / 2_000 - 1 / 6) for count in counts[9:-9]) < 0.03  # the ends are sampled less often
    # n words have a probability proportional to 1 / n, as in the paper; some runs touch.
    assert 0.3 < runs[1] / sum(runs.values()) < 0.55
    assert runs[1] > runs[2] > runs[3] > runs[4]


def run_lengths(words: set[int]) -> list[int]:
    lengths = []
    for word in words:
        if word - 1 not in words:
            length = 1
            while word + length in words:
                length += 1
            lengths.append(length)
    return lengths


def test_a_batch_has_the_permutations_of_its_sequences_padded_with_zeros(tokenizer: Tokenizer):
    permuter = Permuter(tokenizer, SETTINGS)
    examples = [example_with(9), example_with(4)]
    masked_examples = [permuter.mask(example, np.random.default_rng(7)) for example in examples]
    batch = collate_examples(examples, masked_examples, pad=0)
    assert batch.permutation is not None
    for index, (example, masked) in enumerate(zip(examples, masked_examples, strict=True)):
        assert batch.permutation[index, : len(example)].tolist() == masked.permutation.tolist()  # type: ignore[union-attr]
    assert not batch.permutation[1, len(examples[1]) :].any()
