"""Unigram: expected counts by hand, and what is kept."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bertworks.vocabulary.unigram import _blocks, _digamma, _HashTable, _Lattice, learn_unigram


def test_expected_counts_weigh_all_ways_to_cut_a_word() -> None:
    # "ab" is either a+b (0.5 * 0.25 = 1/8) or ab (1/4): one third and two thirds, times its count of 3.
    pieces = ["a", "b", "ab"]
    (block,) = _blocks({"ab": 3})
    expected = _Lattice.from_block(block, _HashTable.from_tokens(pieces)).expected_counts(
        np.array([0.5, 0.25, 0.25, 0.0])
    )
    assert expected[:3] == pytest.approx([1.0, 1.0, 2.0])


def test_the_best_split_leaves_the_whole_word_out() -> None:
    pieces = ["a", "b", "c", "ab", "abc"]
    (block,) = _blocks({"abc": 1})
    logs = np.log(np.array([0.1, 0.1, 0.1, 0.2, 0.5, 1e-300]))
    score, numbers = _Lattice.from_block(block, _HashTable.from_tokens(pieces)).best_split(logs)
    assert score[0] == pytest.approx(math.log(0.2 * 0.1))
    assert numbers[:, 0].tolist() == [2, 3, 5]  # from the end: c, ab, filled up


def test_digamma_at_known_values() -> None:
    euler = 0.5772156649015329
    expected = [-euler, 1 - euler, -euler - 2 * math.log(2), 1.5 - euler]
    assert _digamma(np.array([1.0, 2.0, 0.5, 3.0])) == pytest.approx(expected, abs=1e-8)


def test_frequent_words_become_pieces_and_every_character_stays() -> None:
    words = {"▁the": 500, "▁then": 100, "▁zoo": 1, "▁hen": 50}
    learnt = dict(learn_unigram(words, list("▁thenzo"), 10))
    assert len(learnt) <= 10
    assert {"▁the", *"▁thenzo"} <= set(learnt)
    assert max(learnt, key=lambda piece: learnt[piece]) == "▁the"
    assert all(score < 0 for score in learnt.values())
