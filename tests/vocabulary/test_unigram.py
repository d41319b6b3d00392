"""Unigram training: expected counts by hand, and the resulting tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bertworks.vocabulary.unigram import _blocks, _digamma, _HashTable, _Lattice, learn_unigram


def test_expected_counts_weight_all_tokenizations_of_a_word() -> None:
    # "ab" is either a+b (0.5 * 0.25 = 1/8) or ab (1/4): one third and two thirds, times its count of 3.
    tokens = ["a", "b", "ab"]
    (block,) = _blocks({"ab": 3})
    expected = _Lattice.from_block(block, _HashTable.from_tokens(tokens)).expected_counts(
        np.array([0.5, 0.25, 0.25, 0.0])
    )
    assert expected[:3] == pytest.approx([1.0, 1.0, 2.0])


def test_the_best_split_excludes_the_whole_word() -> None:
    tokens = ["a", "b", "c", "ab", "abc"]
    (block,) = _blocks({"abc": 1})
    log_probability = np.log(np.array([0.1, 0.1, 0.1, 0.2, 0.5, 1e-300]))
    score, indices = _Lattice.from_block(block, _HashTable.from_tokens(tokens)).best_split(log_probability)
    assert score[0] == pytest.approx(math.log(0.2 * 0.1))
    assert indices[:, 0].tolist() == [2, 3, 5]  # from the end: c, ab, padding


def test_digamma_at_known_values() -> None:
    euler = 0.5772156649015329
    expected = [-euler, 1 - euler, -euler - 2 * math.log(2), 1.5 - euler]
    assert _digamma(np.array([1.0, 2.0, 0.5, 3.0])) == pytest.approx(expected, abs=1e-8)


def test_frequent_words_become_tokens_and_every_character_remains() -> None:
    words = {"▁the": 500, "▁then": 100, "▁zoo": 1, "▁hen": 50}
    scores = dict(learn_unigram(words, list("▁thenzo"), 10))
    assert len(scores) <= 10
    assert {"▁the", *"▁thenzo"} <= set(scores)
    assert max(scores, key=lambda token: scores[token]) == "▁the"
    assert all(score < 0 for score in scores.values())
