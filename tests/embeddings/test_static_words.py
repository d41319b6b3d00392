"""Words of static vectors: English by letters and digits, Chinese by jieba; the ends of contexts."""

import pytest

from bertworks.embeddings.static_words import WordSettings, document_contexts, tokenize_words
from bertworks.errors import SettingsError
from bertworks.text.document import Document


def test_english_is_split_at_anything_but_letters_and_digits():
    assert tokenize_words("Don't stop: the U-boat's 2nd café!", WordSettings()) == (
        ["don", "t", "stop", "the", "u", "boat", "s", "2nd", "café"]
    )


def test_case_and_punctuation_can_be_kept():
    assert tokenize_words("Yes, Ann_1.", WordSettings(cased=True, punctuation=True)) == [
        "Yes",
        ",",
        "Ann",
        "_",
        "1",
        ".",
    ]


def test_chinese_is_segmented_and_the_rest_split_like_english():
    assert tokenize_words("我来到北京清华大学，Win-32。", WordSettings()) == [
        "我",
        "来到",
        "北京",
        "清华大学",
        "win",
        "32",
    ]
    assert tokenize_words("北京，2008。", WordSettings(punctuation=True)) == ["北京", "，", "2008", "。"]


def test_contexts_end_with_documents_or_sentences():
    document = Document(("One two. ", "...\n", "Three."), "x")
    assert document_contexts(document, WordSettings()) == ["one two three"]
    assert document_contexts(document, WordSettings(context="sentences")) == ["one two", "three"]
    assert document_contexts(Document(("?!",), "x"), WordSettings()) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"context": "pages"}, "documents, sentences"), ({"min_count": 0}, "min_count"), ({"max_words": -1}, "max_words")],
)
def test_invalid_settings_are_rejected(settings: dict, message: str):
    with pytest.raises(SettingsError, match=message):
        WordSettings(**settings)
