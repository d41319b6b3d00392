"""Masking: ratios over 100,000 tokens, whole words, and edge cases. Bounds are 5 standard deviations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numbered_corpus import FIRST_WORD, NUM_WORDS

from bertworks.errors import SettingsError
from bertworks.sampling.example import Example
from bertworks.sampling.masking import MaskedExample, Masker, MaskSettings
from bertworks.vocabulary.tokenizer import Tokenizer

CLS, SEP, MASK = 2, 3, 4
SPECIAL = Example(
    input_ids=np.array([CLS, SEP], dtype=np.int32),
    token_type_ids=np.zeros(2, np.int8),
    word_starts=np.ones(2, np.bool_),
    is_special=np.ones(2, np.bool_),
)


def example_of(word_lengths: Sequence[int], first: int = 0) -> Example:
    """[CLS] words [SEP], with words of these numbers of tokens; the tokens are w_first, w_first+1, …"""
    size = sum(word_lengths)
    word_starts = np.zeros(size, dtype=np.bool_)
    word_starts[np.cumsum([0, *word_lengths[:-1]])] = True
    input_ids = np.array([CLS, *((first + np.arange(size)) % NUM_WORDS + FIRST_WORD), SEP], dtype=np.int32)
    is_special = np.isin(input_ids, [CLS, SEP])
    return Example(
        input_ids=input_ids,
        token_type_ids=np.zeros(size + 2, np.int8),
        word_starts=np.concatenate(([True], word_starts, [True])),
        is_special=is_special,
    )


def mask_all(masker: Masker, examples: Sequence[Example]) -> list[MaskedExample]:
    return [masker.mask(example, np.random.default_rng(number)) for number, example in enumerate(examples)]


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    """100,000 tokens in 1,000 examples of 100 words of one token."""
    return [example_of([1] * 100, first=number * 100) for number in range(1000)]


@pytest.fixture(scope="module")
def masked_examples(tokenizer: Tokenizer, examples: list[Example]) -> list[MaskedExample]:
    return mask_all(Masker(tokenizer), examples)


def test_fifteen_percent_of_the_tokens_are_masked(masked_examples: list[MaskedExample]) -> None:
    assert {len(masked.positions) for masked in masked_examples} == {15}


def test_mask_prob_holds_over_examples_of_all_lengths(tokenizer: Tokenizer) -> None:
    lengths = np.random.default_rng(1).integers(20, 180, size=1000)
    masked_examples = mask_all(Masker(tokenizer), [example_of([1] * int(length)) for length in lengths])
    # Rounding changes an example by at most half a token, 0.29 in standard deviation: 5 * 0.29 * sqrt(1000) = 46.
    assert abs(sum(len(masked.positions) for masked in masked_examples) - 0.15 * lengths.sum()) <= 46


def test_every_position_is_masked_equally_often(masked_examples: list[MaskedExample]) -> None:
    counts = np.bincount(np.concatenate([masked.positions for masked in masked_examples]), minlength=102)
    assert counts[0] == counts[101] == 0
    # 1,000 examples * 0.15 = 150; 5 * sqrt(1000 * 0.15 * 0.85) = 56
    assert abs(counts[1:101] - 150).max() <= 56


def test_masked_positions_are_80_percent_mask_10_random_10_unchanged(masked_examples: list[MaskedExample]) -> None:
    masked_ids = np.concatenate([masked.input_ids[masked.positions] for masked in masked_examples])
    targets = np.concatenate([masked.targets for masked in masked_examples])
    num_masks, num_same = int((masked_ids == MASK).sum()), int((masked_ids == targets).sum())
    num_random = len(masked_ids) - num_masks - num_same
    assert len(masked_ids) == 15_000
    assert abs(num_masks - 12_000) <= 245  # 5 * sqrt(15000 * 0.8 * 0.2)
    assert abs(num_random - 1500) <= 184  # 5 * sqrt(15000 * 0.1 * 0.9)
    assert abs(num_same - 1500) <= 184


def test_random_tokens_are_ordinary_and_from_the_whole_vocabulary(masked_examples: list[MaskedExample]) -> None:
    masked_ids = np.concatenate([masked.input_ids[masked.positions] for masked in masked_examples])
    targets = np.concatenate([masked.targets for masked in masked_examples])
    random = masked_ids[(masked_ids != MASK) & (masked_ids != targets)]
    assert random.min() >= FIRST_WORD  # neither special nor unused: those have the ids below
    # About 1,500 draws from 10,002 tokens give 1,391 distinct ones on average, at both ends.
    assert len(set(random.tolist())) > 1200
    assert random.min() < FIRST_WORD + 200
    assert random.max() > FIRST_WORD + NUM_WORDS - 200


def test_only_masked_positions_change_and_targets_are_the_true_tokens(
    examples: list[Example], masked_examples: list[MaskedExample]
) -> None:
    for example, masked in zip(examples, masked_examples, strict=True):
        assert (np.diff(masked.positions) > 0).all()
        assert not example.is_special[masked.positions].any()
        assert masked.targets.tolist() == example.input_ids[masked.positions].tolist()
        unmasked = np.setdiff1d(np.arange(len(example)), masked.positions)
        assert (masked.input_ids[unmasked] == example.input_ids[unmasked]).all()


def test_masking_does_not_modify_the_example(tokenizer: Tokenizer) -> None:
    example = example_of([1] * 40)
    original_ids = example.input_ids.tolist()
    Masker(tokenizer).mask(example, np.random.default_rng(0))
    assert example.input_ids.tolist() == original_ids


def word_ids_of(example: Example) -> np.ndarray:
    return np.cumsum(example.word_starts & ~example.is_special) - 1


def test_whole_words_are_masked_completely_or_not_at_all(tokenizer: Tokenizer) -> None:
    generator = np.random.default_rng(5)
    examples = [example_of(generator.integers(1, 5, size=40).tolist()) for _ in range(1000)]
    masked_examples = mask_all(Masker(tokenizer, MaskSettings(whole_words=True)), examples)
    num_tokens = num_masked = 0
    word_counts = np.zeros((5, 2))
    for example, masked in zip(examples, masked_examples, strict=True):
        is_ordinary = ~example.is_special
        sizes = np.bincount(word_ids_of(example)[is_ordinary])
        num_masked_by_word = np.bincount(word_ids_of(example)[masked.positions], minlength=len(sizes))
        assert set(zip(num_masked_by_word.tolist(), sizes.tolist(), strict=True)) <= {(0, n) for n in sizes} | {
            (n, n) for n in sizes
        }
        num_tokens += int(is_ordinary.sum())
        num_masked += len(masked.positions)
        for length in range(1, 5):
            word_counts[length] += ((num_masked_by_word[sizes == length] > 0).sum(), (sizes == length).sum())
    assert num_tokens > 95_000
    assert abs(num_masked / num_tokens - 0.15) < 0.001
    # Short words fill what long ones leave of the budget, as in Google's whole-word masking: so words of one token are
    # masked more often (measured here: 0.22) than those of four (0.13), but none is excluded.
    ratios = word_counts[1:, 0] / word_counts[1:, 1]
    assert ratios.min() > 0.11
    assert ratios.max() < 0.25


def test_a_word_longer_than_the_budget_is_skipped_if_others_fit(tokenizer: Tokenizer) -> None:
    # 30 tokens, of which 4 are masked: the word of 20 tokens never fits.
    example = example_of([1] * 5 + [20] + [1] * 5)
    masker = Masker(tokenizer, MaskSettings(whole_words=True))
    for masked in mask_all(masker, [example] * 200):
        assert len(masked.positions) == 4
        assert not ((masked.positions > 5) & (masked.positions <= 25)).any()


def test_if_one_word_fills_the_example_its_first_tokens_are_masked(tokenizer: Tokenizer) -> None:
    masked = Masker(tokenizer, MaskSettings(whole_words=True)).mask(example_of([40]), np.random.default_rng(0))
    assert masked.positions.tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("whole_words", [False, True])
def test_at_least_one_token_is_masked(tokenizer: Tokenizer, whole_words: bool) -> None:
    masker = Masker(tokenizer, MaskSettings(whole_words=whole_words))
    for length in (1, 2, 3):
        assert len(masker.mask(example_of([1] * length), np.random.default_rng(0)).positions) == 1


@pytest.mark.parametrize("whole_words", [False, True])
def test_an_example_of_special_tokens_has_nothing_to_mask(tokenizer: Tokenizer, whole_words: bool) -> None:
    masked = Masker(tokenizer, MaskSettings(whole_words=whole_words)).mask(SPECIAL, np.random.default_rng(0))
    assert masked.positions.tolist() == masked.targets.tolist() == []
    assert masked.input_ids.tolist() == [CLS, SEP]


@pytest.mark.parametrize("whole_words", [False, True])
def test_at_most_max_predictions_are_masked(tokenizer: Tokenizer, whole_words: bool) -> None:
    masker = Masker(tokenizer, MaskSettings(whole_words=whole_words, max_predictions=5))
    assert len(masker.mask(example_of([1] * 100), np.random.default_rng(0)).positions) == 5
    assert len(masker.mask(example_of([1] * 20), np.random.default_rng(0)).positions) == 3


def runs_of(positions: np.ndarray) -> list[np.ndarray]:
    """Group consecutive masked positions."""
    return np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)


def test_unigrams_bigrams_and_trigrams_are_masked_6_to_3_to_2(tokenizer: Tokenizer) -> None:
    """1, 1/2 and 1/3 are 6/11, 3/11 and 2/11. So few are masked that two runs rarely touch (about 1 in 50)."""
    masker = Masker(tokenizer, MaskSettings(mask_prob=0.01, max_ngram=3))
    masked_examples = mask_all(masker, [example_of([1] * 10_000)] * 100)
    assert {len(masked.positions) for masked in masked_examples} == {100}
    lengths = np.bincount([len(run) for masked in masked_examples for run in runs_of(masked.positions)])
    assert lengths.sum() > 5_500  # 10,000 positions in runs of 18/11 on average are 6,111
    # 5 * sqrt(6111 * 0.25) is 0.03 of them; runs that touch, and the last ones, which are shortened, take 0.02.
    assert np.abs(lengths[1:4] / lengths.sum() - np.array([6, 3, 2]) / 11).max() < 0.05
    assert lengths[4:].sum() / lengths.sum() < 0.03


@pytest.mark.parametrize("max_ngram", [2, 3])
def test_mask_prob_holds_for_ngrams_of_whole_words(tokenizer: Tokenizer, max_ngram: int) -> None:
    generator = np.random.default_rng(5)
    examples = [example_of(generator.integers(1, 5, size=40).tolist()) for _ in range(300)]
    masked_examples = mask_all(Masker(tokenizer, MaskSettings(whole_words=True, max_ngram=max_ngram)), examples)
    for example, masked in zip(examples, masked_examples, strict=True):
        sizes = np.bincount(word_ids_of(example)[~example.is_special])
        num_masked_by_word = np.bincount(word_ids_of(example)[masked.positions], minlength=len(sizes))
        assert ((num_masked_by_word == 0) | (num_masked_by_word == sizes)).all()
    num_tokens = sum(len(example) - 2 for example in examples)
    assert abs(sum(len(masked.positions) for masked in masked_examples) / num_tokens - 0.15) < 0.002


def test_an_ngram_does_not_cross_a_separator(tokenizer: Tokenizer) -> None:
    input_ids = np.array([CLS, 11, SEP, 12, SEP, 13, SEP], dtype=np.int32)
    example = Example(
        input_ids=input_ids,
        token_type_ids=np.zeros(7, np.int8),
        word_starts=np.ones(7, np.bool_),
        is_special=np.isin(input_ids, [CLS, SEP]),
    )
    masker = Masker(tokenizer, MaskSettings(mask_prob=1.0, max_ngram=3))
    for seed in range(20):
        runs = masker._runs(example, np.array([1, 3, 5]), 3, np.random.default_rng(seed))
        assert sorted(map(len, runs)) == [1, 1, 1]


def test_mask_probabilities_are_configurable(tokenizer: Tokenizer) -> None:
    masker = Masker(tokenizer, MaskSettings(mask_prob=0.4, mask_replace_prob=1.0, random_replace_prob=0.0))
    masked = masker.mask(example_of([1] * 50), np.random.default_rng(0))
    assert masked.input_ids[masked.positions].tolist() == [MASK] * 20


@pytest.mark.parametrize(
    "settings",
    [
        {"mask_prob": 0.0},
        {"mask_prob": 1.5},
        {"mask_replace_prob": -0.1},
        {"mask_replace_prob": 0.95, "random_replace_prob": 0.1},
        {"max_predictions": -1},
        {"max_ngram": 0},
    ],
)
def test_invalid_mask_settings_are_rejected(settings: dict[str, float]) -> None:
    with pytest.raises(SettingsError):
        MaskSettings(**settings)
