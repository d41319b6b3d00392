"""Counting: chunks change nothing, and forgetting is counted."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertworks.text.document import Counts
from bertworks.vocabulary.algorithms import KINDS
from bertworks.vocabulary.counting import count_words, word_splitter

ODD = "abAS'tTéİß ,.!$\t\n\r\x0b\x0c\x1c\xa0\u200b\u0301\u3000京北，。“ｱ7½ \u2581"


@pytest.mark.parametrize("cased", [True, False])
@pytest.mark.parametrize("name", ["wordpiece", "byte-bpe"])
@given(text=st.text(alphabet=ODD, max_size=40))
@settings(max_examples=300, deadline=None)
def test_counting_by_chunks_equals_splitting_the_whole_text(name: str, cased: bool, text: str) -> None:
    reader = KINDS[name].untrained_tokenizer(cased)
    counted = count_words([text], reader, KINDS[name].chunks(cased), 1000, Counts())
    assert counted == Counter(word_splitter(reader)(text))


def test_unigram_words_behind_chinese_punctuation_get_no_space_mark() -> None:
    kind = KINDS["unigram"]
    counted = count_words(["我们，你们 ab"], kind.reader(False), kind.chunks(False), 1000, Counts())
    assert counted == {",": 1, "▁ab": 1, "▁我们": 1, "你们": 1}


def test_above_the_limit_the_rarest_words_are_forgotten_and_counted() -> None:
    kind, counts = KINDS["wordpiece"], Counts()
    counted = count_words(["a a a b b c d"], kind.untrained_tokenizer(False), kind.chunks(False), 2, counts)
    assert counted == {"a": 3, "b": 2}
    assert counts["words forgotten: too many different ones"] == 2
