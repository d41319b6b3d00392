"""Rows told in an order of their own: which places come last, and in which order."""

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


def example_with(num_words: int, pieces_each: int = 2) -> Example:
    """[CLS] words of equal length [SEP]."""
    size = num_words * pieces_each + 2
    ids = np.arange(5, 5 + size, dtype=np.int32)
    starts, special = np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)
    special[[0, -1]] = True
    starts[[0, -1, *range(1, size - 1, pieces_each)]] = True
    return Example(ids, np.zeros(size, dtype=np.int8), starts, special)


def test_nothing_is_masked_and_the_order_counts_the_places(tokenizer: Tokenizer):
    example = example_with(30)
    hidden = Permuter(tokenizer, SETTINGS).mask(example, np.random.default_rng(1))
    assert np.array_equal(hidden.input_ids, example.input_ids)
    assert np.array_equal(hidden.targets, example.input_ids[hidden.positions])
    assert len(hidden.positions) == 10  # a sixth of 60
    assert hidden.permutation is not None
    assert sorted(hidden.permutation[hidden.positions].tolist()) == list(range(1, 11))
    told = np.ones(len(example), dtype=bool)
    told[hidden.positions] = False
    assert not hidden.permutation[told].any()
    assert not hidden.permutation[example.is_special].any()


def test_the_same_generator_gives_the_same_order(tokenizer: Tokenizer):
    permuter, example = Permuter(tokenizer, SETTINGS), example_with(40)
    one, same, other = (permuter.mask(example, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert np.array_equal(one.permutation, same.permutation)  # type: ignore[arg-type]
    assert not np.array_equal(one.permutation, other.permutation)  # type: ignore[arg-type]


def test_a_sixth_of_the_pieces_is_predicted_in_whole_words_and_every_order_is_as_likely(tokenizer: Tokenizer):
    permuter, example = Permuter(tokenizer, SETTINGS), example_with(60)
    generator = np.random.default_rng(0)
    num_places, firsts, runs = 0, Counter[int](), Counter[int]()
    chosen = np.zeros(len(example))
    for _ in range(2_000):
        hidden = permuter.mask(example, generator)
        assert hidden.permutation is not None
        num_places += len(hidden.positions)
        chosen[hidden.positions] += 1
        firsts[int(np.argsort(hidden.permutation[hidden.positions])[0])] += 1
        words = set(((hidden.positions - 1) // 2).tolist())
        assert all(2 * word + 1 in hidden.positions and 2 * word + 2 in hidden.positions for word in words)
        runs.update(run_lengths(words))
    assert abs(num_places / (2_000 * 120) - 1 / 6) < 1e-3
    assert firsts.keys() == set(range(20))
    assert max(abs(count / 2_000 - 1 / 20) for count in firsts.values()) < 0.02
    assert max(abs(count / 2_000 - 1 / 6) for count in chosen[9:-9]) < 0.03  # ends are hit less often
    # Of a single word as often as the paper's, where n words have probability in proportion to 1 / n; some runs touch.
    assert 0.3 < runs[1] / sum(runs.values()) < 0.55
    assert runs[1] > runs[2] > runs[3] > runs[4]


def run_lengths(words: set[int]) -> list[int]:
    found = []
    for word in words:
        if word - 1 not in words:
            length = 1
            while word + length in words:
                length += 1
            found.append(length)
    return found


def test_a_batch_has_the_orders_of_its_rows_with_zeros_behind_them(tokenizer: Tokenizer):
    permuter = Permuter(tokenizer, SETTINGS)
    examples = [example_with(9), example_with(4)]
    hidden = [permuter.mask(one, np.random.default_rng(7)) for one in examples]
    batch = collate_examples(examples, hidden, pad=0)
    assert batch.permutation is not None
    for row, (example, hid) in enumerate(zip(examples, hidden, strict=True)):
        assert batch.permutation[row, : len(example)].tolist() == hid.permutation.tolist()  # type: ignore[union-attr]
    assert not batch.permutation[1, len(examples[1]) :].any()
