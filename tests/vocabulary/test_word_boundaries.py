"""Word boundaries in Chinese: jieba's boundaries, and word starts in mixed text."""

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
TOKENS = [*SPECIALS, *"我喜欢模型卡拉恤这件很好北京，。.t", "ok", "be", "##rt", "-", "base", "the"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_backend(wordpiece_backend(TOKENS, cased=False))


def words_of(tokenizer: Tokenizer, sentences: list[str], word_rule: str) -> list[list[str]]:
    """The tokens, grouped by word."""
    flat = tokenizer.encode_sentences(sentences, word_rule=word_rule)
    words: list[list[str]] = []
    for token_id, begins_word in zip(flat.input_ids, flat.word_starts, strict=True):
        if begins_word:
            words.append([])
        words[-1].append(tokenizer.tokens[token_id])
    return words


def test_boundaries_are_at_the_first_character_of_each_word() -> None:
    # 我 | 喜欢 | BERT | 模型
    boundaries = jieba_boundaries("我喜欢BERT模型")
    assert boundaries.dtype == np.bool_
    assert np.flatnonzero(boundaries).tolist() == [0, 1, 3, 7]


def test_a_word_of_letters_and_ideographs_is_one_word() -> None:
    # 这件 | T恤 | 很 | 好
    assert np.flatnonzero(jieba_boundaries("这件T恤很好")).tolist() == [0, 2, 4, 5]


def test_boundaries_of_white_space_and_of_empty_text() -> None:
    assert jieba_boundaries("我 \n好").tolist() == [True] * 4
    assert jieba_boundaries("").tolist() == []


def test_a_lone_surrogate_is_a_word() -> None:
    assert jieba_boundaries("北京\ud800北京").tolist() == [True, False, True, True, False]


def test_without_jieba_each_ideograph_is_a_word(tokenizer: Tokenizer) -> None:
    words = words_of(tokenizer, ["我喜欢BERT模型"], "tokens")
    assert words == [["我"], ["喜"], ["欢"], ["be", "##rt"], ["模"], ["型"]]


def test_with_jieba_word_starts_are_those_of_words(tokenizer: Tokenizer) -> None:
    words = words_of(tokenizer, ["我喜欢BERT模型"], "jieba")
    assert words == [["我"], ["喜", "欢"], ["be", "##rt"], ["模", "型"]]


def test_letters_belong_to_the_word_of_their_ideographs(tokenizer: Tokenizer) -> None:
    assert words_of(tokenizer, ["这件T恤很好"], "jieba") == [["这", "件"], ["t", "恤"], ["很"], ["好"]]


def test_letters_that_are_a_separate_word_stay_separate(tokenizer: Tokenizer) -> None:
    assert words_of(tokenizer, ["我喜欢卡拉OK。"], "jieba") == [["我"], ["喜", "欢"], ["卡", "拉"], ["ok"], ["。"]]


def test_punctuation_inside_a_jieba_word_belongs_to_it(tokenizer: Tokenizer) -> None:
    assert words_of(tokenizer, ["BERT-base模型"], "jieba") == [["be", "##rt", "-", "base"], ["模", "型"]]


def test_english_sentences_are_not_touched_by_jieba(tokenizer: Tokenizer) -> None:
    assert words_of(tokenizer, ["the bert-base"], "jieba") == [["the"], ["be", "##rt"], ["-"], ["base"]]


def test_words_do_not_cross_sentences(tokenizer: Tokenizer) -> None:
    assert words_of(tokenizer, ["北京"], "jieba") == [["北", "京"]]
    assert words_of(tokenizer, ["北", "京", "the", "模", "型"], "jieba") == [["北"], ["京"], ["the"], ["模"], ["型"]]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.text(alphabet="我喜欢北京模型T恤ok,. \n\r\t\u3000\u200b\x0b\x85\u2028\ud800é", max_size=12), max_size=4)
)
def test_jieba_changes_no_token_and_every_sentence_begins_a_word(sentences: list[str]) -> None:
    tokenizer = Tokenizer.from_backend(wordpiece_backend(TOKENS, cased=False))
    plain, with_jieba = tokenizer.encode_sentences(sentences), tokenizer.encode_sentences(sentences, word_rule="jieba")
    assert with_jieba.input_ids.tolist() == plain.input_ids.tolist()
    assert with_jieba.sentence_ends.tolist() == plain.sentence_ends.tolist()
    sentence_starts = [start for start, end in pairwise([0, *with_jieba.sentence_ends.tolist()]) if start < end]
    assert with_jieba.word_starts[sentence_starts].all()


def test_an_unknown_word_rule_is_rejected_with_the_valid_ones(tokenizer: Tokenizer) -> None:
    with pytest.raises(SettingsError, match="no word rule 'words'; choose one of: tokens, jieba"):
        tokenizer.encode_sentences(["我"], word_rule="words")
