"""What is hidden: rates over 100,000 pieces, whole words, and the edges. Bounds are 5 standard deviations."""

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


def example_of(word_lengths: Sequence[int], first: int = 0) -> Example:
    """[CLS] words [SEP], of words of so many pieces; the pieces are w_first, w_first+1, … whatever their word."""
    size = sum(word_lengths)
    starts = np.zeros(size, dtype=np.bool_)
    starts[np.cumsum([0, *word_lengths[:-1]])] = True
    ids = np.array([CLS, *((first + np.arange(size)) % NUM_WORDS + FIRST_WORD), SEP], dtype=np.int32)
    special = np.isin(ids, [CLS, SEP])
    return Example(ids, np.zeros(size + 2, np.int8), np.concatenate(([True], starts, [True])), special)


def hide_all(masker: Masker, examples: Sequence[Example]) -> list[MaskedExample]:
    return [masker.mask(example, np.random.default_rng(number)) for number, example in enumerate(examples)]


@pytest.fixture(scope="module")
def thousand() -> list[Example]:
    """100,000 pieces in 1,000 examples of 100 words of one piece."""
    return [example_of([1] * 100, first=number * 100) for number in range(1000)]


@pytest.fixture(scope="module")
def hidden(tokenizer: Tokenizer, thousand: list[Example]) -> list[MaskedExample]:
    return hide_all(Masker(tokenizer), thousand)


def test_fifteen_of_a_hundred_pieces_are_hidden(hidden: list[MaskedExample]) -> None:
    assert {len(one.positions) for one in hidden} == {15}


def test_the_rate_holds_over_examples_of_all_lengths(tokenizer: Tokenizer) -> None:
    lengths = np.random.default_rng(1).integers(20, 180, size=1000)
    hidden = hide_all(Masker(tokenizer), [example_of([1] * int(length)) for length in lengths])
    # Rounding adds at most half a place to an example, 0.29 in standard deviation: 5 * 0.29 * sqrt(1000) = 46 places.
    assert abs(sum(len(one.positions) for one in hidden) - 0.15 * lengths.sum()) <= 46


def test_every_place_is_hidden_equally_often(hidden: list[MaskedExample]) -> None:
    counts = np.bincount(np.concatenate([one.positions for one in hidden]), minlength=102)
    assert counts[0] == counts[101] == 0
    # 1,000 examples * 0.15 = 150; 5 * sqrt(1000 * 0.15 * 0.85) = 56
    assert abs(counts[1:101] - 150).max() <= 56


def test_of_the_hidden_places_80_percent_are_masks_10_random_and_10_as_they_were(hidden: list[MaskedExample]) -> None:
    seen = np.concatenate([one.input_ids[one.positions] for one in hidden])
    targets = np.concatenate([one.targets for one in hidden])
    num_masks, num_same = int((seen == MASK).sum()), int((seen == targets).sum())
    num_random = len(seen) - num_masks - num_same
    assert len(seen) == 15_000
    assert abs(num_masks - 12_000) <= 245  # 5 * sqrt(15000 * 0.8 * 0.2)
    assert abs(num_random - 1500) <= 184  # 5 * sqrt(15000 * 0.1 * 0.9)
    assert abs(num_same - 1500) <= 184


def test_random_pieces_are_ordinary_ones_of_the_whole_vocabulary(hidden: list[MaskedExample]) -> None:
    seen = np.concatenate([one.input_ids[one.positions] for one in hidden])
    targets = np.concatenate([one.targets for one in hidden])
    random = seen[(seen != MASK) & (seen != targets)]
    assert random.min() >= FIRST_WORD  # neither special nor unused: those have the ids below
    # About 1,500 draws from 10,002 pieces hit 1,391 different ones on average and reach both ends.
    assert len(set(random.tolist())) > 1200
    assert random.min() < FIRST_WORD + 200
    assert random.max() > FIRST_WORD + NUM_WORDS - 200


def test_only_the_hidden_places_change_and_targets_are_what_stood_there(
    thousand: list[Example], hidden: list[MaskedExample]
) -> None:
    for example, one in zip(thousand, hidden, strict=True):
        assert (np.diff(one.positions) > 0).all()
        assert not example.is_special[one.positions].any()
        assert one.targets.tolist() == example.input_ids[one.positions].tolist()
        others = np.setdiff1d(np.arange(len(example)), one.positions)
        assert (one.input_ids[others] == example.input_ids[others]).all()


def test_the_example_itself_stays_unmasked(tokenizer: Tokenizer) -> None:
    example = example_of([1] * 40)
    before = example.input_ids.tolist()
    Masker(tokenizer).mask(example, np.random.default_rng(0))
    assert example.input_ids.tolist() == before


def word_of_each(example: Example) -> np.ndarray:
    return np.cumsum(example.word_starts & ~example.is_special) - 1


def test_whole_words_are_hidden_with_all_their_pieces_or_none(tokenizer: Tokenizer) -> None:
    generator = np.random.default_rng(5)
    examples = [example_of(generator.integers(1, 5, size=40).tolist()) for _ in range(1000)]
    hidden = hide_all(Masker(tokenizer, MaskSettings(whole_words=True)), examples)
    num_pieces = num_hidden = 0
    shares = np.zeros((5, 2))
    for example, one in zip(examples, hidden, strict=True):
        ordinary = ~example.is_special
        sizes = np.bincount(word_of_each(example)[ordinary])
        hits = np.bincount(word_of_each(example)[one.positions], minlength=len(sizes))
        assert set(zip(hits.tolist(), sizes.tolist(), strict=True)) <= {(0, n) for n in sizes} | {(n, n) for n in sizes}
        num_pieces += int(ordinary.sum())
        num_hidden += len(one.positions)
        for length in range(1, 5):
            shares[length] += ((hits[sizes == length] > 0).sum(), (sizes == length).sum())
    assert num_pieces > 95_000
    assert abs(num_hidden / num_pieces - 0.15) < 0.001
    # Short words fill what long ones leave of an example's share, as in Google's whole-word masking: so words of one
    # piece are hidden more often (measured here: 0.22) than those of four (0.13), but none is left out.
    rates = shares[1:, 0] / shares[1:, 1]
    assert rates.min() > 0.11
    assert rates.max() < 0.25


def test_a_word_longer_than_the_share_stays_when_others_fit(tokenizer: Tokenizer) -> None:
    # 30 pieces, of which 4 are to be hidden: the word of 20 pieces never fits.
    example = example_of([1] * 5 + [20] + [1] * 5)
    masker = Masker(tokenizer, MaskSettings(whole_words=True))
    for one in hide_all(masker, [example] * 200):
        assert len(one.positions) == 4
        assert not ((one.positions > 5) & (one.positions <= 25)).any()


def test_if_one_word_fills_the_example_its_first_pieces_are_hidden(tokenizer: Tokenizer) -> None:
    one = Masker(tokenizer, MaskSettings(whole_words=True)).mask(example_of([40]), np.random.default_rng(0))
    assert one.positions.tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("whole_words", [False, True])
def test_at_least_one_place_is_hidden(tokenizer: Tokenizer, whole_words: bool) -> None:
    masker = Masker(tokenizer, MaskSettings(whole_words=whole_words))
    for length in (1, 2, 3):
        assert len(masker.mask(example_of([1] * length), np.random.default_rng(0)).positions) == 1


@pytest.mark.parametrize("whole_words", [False, True])
def test_no_more_than_max_places_are_hidden(tokenizer: Tokenizer, whole_words: bool) -> None:
    masker = Masker(tokenizer, MaskSettings(whole_words=whole_words, max_predictions=5))
    assert len(masker.mask(example_of([1] * 100), np.random.default_rng(0)).positions) == 5
    assert len(masker.mask(example_of([1] * 20), np.random.default_rng(0)).positions) == 3


def runs_of(places: np.ndarray) -> list[np.ndarray]:
    """Hidden places, those that follow one another together."""
    return np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)


def test_runs_of_one_two_and_three_words_are_hidden_as_6_to_3_to_2(tokenizer: Tokenizer) -> None:
    """1, 1/2 and 1/3 are 6/11, 3/11 and 2/11. So few are hidden that two runs rarely touch (about 1 in 50)."""
    masker = Masker(tokenizer, MaskSettings(mask_prob=0.01, max_ngram=3))
    hidden = hide_all(masker, [example_of([1] * 10_000)] * 100)
    assert {len(one.positions) for one in hidden} == {100}
    lengths = np.bincount([len(run) for one in hidden for run in runs_of(one.positions)])
    assert lengths.sum() > 5_500  # 10,000 places in runs of 18/11 on average are 6,111
    # 5 * sqrt(6111 * 0.25) is 0.03 of them; runs that touch, and the last ones, which are shortened, take 0.02.
    assert np.abs(lengths[1:4] / lengths.sum() - np.array([6, 3, 2]) / 11).max() < 0.05
    assert lengths[4:].sum() / lengths.sum() < 0.03


@pytest.mark.parametrize("max_ngram", [2, 3])
def test_the_rate_holds_for_runs_of_whole_words_too(tokenizer: Tokenizer, max_ngram: int) -> None:
    generator = np.random.default_rng(5)
    examples = [example_of(generator.integers(1, 5, size=40).tolist()) for _ in range(300)]
    hidden = hide_all(Masker(tokenizer, MaskSettings(whole_words=True, max_ngram=max_ngram)), examples)
    for example, one in zip(examples, hidden, strict=True):
        sizes = np.bincount(word_of_each(example)[~example.is_special])
        hits = np.bincount(word_of_each(example)[one.positions], minlength=len(sizes))
        assert ((hits == 0) | (hits == sizes)).all()
    num_pieces = sum(len(example) - 2 for example in examples)
    assert abs(sum(len(one.positions) for one in hidden) / num_pieces - 0.15) < 0.002


def test_a_run_ends_at_a_separator(tokenizer: Tokenizer) -> None:
    ids = np.array([CLS, 11, SEP, 12, SEP, 13, SEP], dtype=np.int32)
    example = Example(ids, np.zeros(7, np.int8), np.ones(7, np.bool_), np.isin(ids, [CLS, SEP]))
    masker = Masker(tokenizer, MaskSettings(mask_prob=1.0, max_ngram=3))
    for seed in range(20):
        found = masker._runs(example, np.array([1, 3, 5]), 3, np.random.default_rng(seed))
        assert sorted(map(len, found)) == [1, 1, 1]


def test_rates_of_the_recipe_are_obeyed(tokenizer: Tokenizer) -> None:
    masker = Masker(tokenizer, MaskSettings(mask_prob=0.4, mask_replace_prob=1.0, random_replace_prob=0.0))
    one = masker.mask(example_of([1] * 50), np.random.default_rng(0))
    assert one.input_ids[one.positions].tolist() == [MASK] * 20


@pytest.mark.parametrize(
    "settings",
    [
        {"rate": 0.0},
        {"rate": 1.5},
        {"mask_rate": -0.1},
        {"mask_rate": 0.95, "random_rate": 0.1},
        {"max_places": -1},
        {"max_ngram": 0},
    ],
)
def test_impossible_rates_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(SettingsError):
        MaskSettings(**settings)
