"""A vocabulary of jieba's words: a Chinese word is one piece, with its place in the text."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertworks.vocabulary.tokenizer import Tokenizer
from bertworks.vocabulary.training import VocabularySettings, train

TEXTS = ["我喜欢北京。我喜欢 BERT 模型。", "北京的天气很好，don't stop。"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_backend(train(TEXTS * 2, VocabularySettings("jieba-words", 30)))


def test_a_chinese_word_is_one_piece(tokenizer: Tokenizer):
    assert tokenizer.kind == "jieba-words"
    encoding = tokenizer.encode("我喜欢北京")
    assert encoding.tokens == ("[CLS]", "我", "喜欢", "北京", "[SEP]")
    assert encoding.word_ids == (None, 0, 1, 2, None)


def test_offsets_point_into_the_text(tokenizer: Tokenizer):
    text = "我 喜欢\tBERT，don't"
    encoding = tokenizer.encode(text)
    found = [text[slice(*offset)] for offset in encoding.offsets if offset is not None]
    assert found == ["我", "喜欢", "BERT", "，", "don", "'", "t"]
    assert encoding.tokens[3] == "bert"


def test_sentences_are_cut_as_texts_are(tokenizer: Tokenizer):
    flat = tokenizer.encode_sentences([*TEXTS, ""])
    assert flat.sentence_ends.tolist()[-1] == len(flat.input_ids) == flat.word_starts.sum()
    at = 0
    for text, end in zip([*TEXTS, ""], flat.sentence_ends.tolist(), strict=True):
        assert tuple(flat.input_ids[at:end]) == tokenizer.encode(text).input_ids[1:-1]
        at = end
    assert tokenizer.specials.unknown not in flat.input_ids  # all that was learned from is known


def test_a_folder_keeps_the_kind(tokenizer: Tokenizer, tmp_path: Path):
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.kind == "jieba-words"
    assert again.hash == tokenizer.hash
    assert again.encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])
