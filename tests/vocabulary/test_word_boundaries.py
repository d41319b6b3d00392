"""Where words begin in Chinese: jieba's flags, and whole words in mixed text."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertworks.errors import SettingsError
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.tokenizer import Tokenizer
from bertworks.vocabulary.word_boundaries import jieba_boundaries

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [*SPECIALS, *"我喜欢模型卡拉恤这件很好北京，。.t", "ok", "be", "##rt", "-", "base", "the"]


@pytest.fixture(scope="module")
def chinese() -> Tokenizer:
    return Tokenizer.from_backend(wordpiece_backend(PIECES, cased=False))


def words(tokenizer: Tokenizer, sentences: list[str], rule: str) -> list[list[str]]:
    """The pieces, grouped by the words they make."""
    flat = tokenizer.encode_sentences(sentences, word_rule=rule)
    grouped: list[list[str]] = []
    for number, begins in zip(flat.input_ids, flat.word_starts, strict=True):
        if begins:
            grouped.append([])
        grouped[-1].append(tokenizer.tokens[number])
    return grouped


def test_flags_stand_at_the_first_character_of_each_word() -> None:
    # 我 | 喜欢 | BERT | 模型
    flags = jieba_boundaries("我喜欢BERT模型")
    assert flags.dtype == np.bool_
    assert np.flatnonzero(flags).tolist() == [0, 1, 3, 7]


def test_a_word_of_letters_and_ideographs_is_one_word() -> None:
    # 这件 | T恤 | 很 | 好
    assert np.flatnonzero(jieba_boundaries("这件T恤很好")).tolist() == [0, 2, 4, 5]


def test_flags_of_white_space_and_of_nothing() -> None:
    assert jieba_boundaries("我 \n好").tolist() == [True] * 4
    assert jieba_boundaries("").tolist() == []


def test_a_lone_surrogate_is_a_word_like_any_odd_character() -> None:
    assert jieba_boundaries("北京\ud800北京").tolist() == [True, False, True, True, False]


def test_without_jieba_each_ideograph_is_a_word(chinese: Tokenizer) -> None:
    found = words(chinese, ["我喜欢BERT模型"], "pieces")
    assert found == [["我"], ["喜"], ["欢"], ["be", "##rt"], ["模"], ["型"]]


def test_with_jieba_words_are_whole(chinese: Tokenizer) -> None:
    found = words(chinese, ["我喜欢BERT模型"], "jieba")
    assert found == [["我"], ["喜", "欢"], ["be", "##rt"], ["模", "型"]]


def test_letters_join_the_ideographs_of_their_word(chinese: Tokenizer) -> None:
    assert words(chinese, ["这件T恤很好"], "jieba") == [["这", "件"], ["t", "恤"], ["很"], ["好"]]


def test_letters_that_are_a_word_of_their_own_stay_apart(chinese: Tokenizer) -> None:
    assert words(chinese, ["我喜欢卡拉OK。"], "jieba") == [["我"], ["喜", "欢"], ["卡", "拉"], ["ok"], ["。"]]


def test_marks_inside_a_word_belong_to_it(chinese: Tokenizer) -> None:
    assert words(chinese, ["BERT-base模型"], "jieba") == [["be", "##rt", "-", "base"], ["模", "型"]]


def test_english_sentences_are_not_touched_by_jieba(chinese: Tokenizer) -> None:
    assert words(chinese, ["the bert-base"], "jieba") == [["the"], ["be", "##rt"], ["-"], ["base"]]


def test_words_do_not_reach_over_sentences(chinese: Tokenizer) -> None:
    assert words(chinese, ["北京"], "jieba") == [["北", "京"]]
    assert words(chinese, ["北", "京", "the", "模", "型"], "jieba") == [["北"], ["京"], ["the"], ["模"], ["型"]]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.text(alphabet="我喜欢北京模型T恤ok,. \n\r\t\u3000\u200b\x0b\x85\u2028\ud800é", max_size=12), max_size=4)
)
def test_jieba_changes_no_piece_and_every_sentence_begins_a_word(sentences: list[str]) -> None:
    tokenizer = Tokenizer.from_backend(wordpiece_backend(PIECES, cased=False))
    alone, together = tokenizer.encode_sentences(sentences), tokenizer.encode_sentences(sentences, word_rule="jieba")
    assert together.input_ids.tolist() == alone.input_ids.tolist()
    assert together.sentence_ends.tolist() == alone.sentence_ends.tolist()
    first = [start for start, end in pairwise([0, *together.sentence_ends.tolist()]) if start < end]
    assert together.word_starts[first].all()


def test_an_unknown_word_rule_is_refused_with_the_known_ones(chinese: Tokenizer) -> None:
    with pytest.raises(SettingsError, match="no word rule 'words'; choose one of: pieces, jieba"):
        chinese.encode_sentences(["我"], word_rule="words")
