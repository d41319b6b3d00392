"""A vocabulary of jieba's words: a Chinese word is one token, with its offsets."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertworks.vocabulary.tokenizer import Tokenizer
from bertworks.vocabulary.training import VocabularySettings, train

TEXTS = ["我喜欢北京。我喜欢 BERT 模型。", "北京的天气很好，don't stop。"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_backend(train(TEXTS * 2, VocabularySettings(kind="jieba-words", vocab_size=30)))


def test_a_chinese_word_is_one_token(tokenizer: Tokenizer):
    assert tokenizer.kind == "jieba-words"
    encoding = tokenizer.encode("我喜欢北京")
    assert encoding.tokens == ("[CLS]", "我", "喜欢", "北京", "[SEP]")
    assert encoding.word_ids == (None, 0, 1, 2, None)


def test_offsets_refer_to_the_text(tokenizer: Tokenizer):
    text = "我 喜欢\tBERT，don't"
    encoding = tokenizer.encode(text)
    words = [text[slice(*offset)] for offset in encoding.offsets if offset is not None]
    assert words == ["我", "喜欢", "BERT", "，", "don", "'", "t"]
    assert encoding.tokens[3] == "bert"


def test_encode_sentences_equals_encode(tokenizer: Tokenizer):
    flat = tokenizer.encode_sentences([*TEXTS, ""])
    assert flat.sentence_ends.tolist()[-1] == len(flat.input_ids) == flat.word_starts.sum()
    start = 0
    for text, end in zip([*TEXTS, ""], flat.sentence_ends.tolist(), strict=True):
        assert tuple(flat.input_ids[start:end]) == tokenizer.encode(text).input_ids[1:-1]
        start = end
    assert tokenizer.specials.unknown not in flat.input_ids  # all words of the training text are known


def test_saving_keeps_the_kind(tokenizer: Tokenizer, tmp_path: Path):
    tokenizer.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert loaded.kind == "jieba-words"
    assert loaded.hash == tokenizer.hash
    assert loaded.encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])
