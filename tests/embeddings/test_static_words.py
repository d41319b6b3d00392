"""What a word is to static vectors: English by letters and digits, Chinese by jieba; where windows end."""

import pytest

from bertworks.embeddings.static_words import WordSettings, document_contexts, tokenize_words
from bertworks.errors import SettingsError
from bertworks.text.document import Document


def test_english_is_cut_at_whatever_is_no_letter_or_digit():
    assert tokenize_words("Don't stop: the U-boat's 2nd café!", WordSettings()) == (
        ["don", "t", "stop", "the", "u", "boat", "s", "2nd", "café"]
    )


def test_case_and_signs_are_kept_when_asked_for():
    assert tokenize_words("Yes, Ann_1.", WordSettings(cased=True, punctuation=True)) == [
        "Yes",
        ",",
        "Ann",
        "_",
        "1",
        ".",
    ]


def test_chinese_is_cut_into_words_and_what_is_not_chinese_like_english():
    assert tokenize_words("我来到北京清华大学，Win-32。", WordSettings()) == [
        "我",
        "来到",
        "北京",
        "清华大学",
        "win",
        "32",
    ]
    assert tokenize_words("北京，2008。", WordSettings(punctuation=True)) == ["北京", "，", "2008", "。"]


def test_windows_reach_to_the_ends_of_documents_or_of_sentences():
    document = Document(("One two. ", "...\n", "Three."), "x")
    assert document_contexts(document, WordSettings()) == ["one two three"]
    assert document_contexts(document, WordSettings(reach="sentences")) == ["one two", "three"]
    assert document_contexts(Document(("?!",), "x"), WordSettings()) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"reach": "pages"}, "documents, sentences"), ({"min_count": 0}, "min_count"), ({"max_words": -1}, "max_words")],
)
def test_settings_that_cannot_work_are_refused(wrong: dict, said: str):
    with pytest.raises(SettingsError, match=said):
        WordSettings(**wrong)
