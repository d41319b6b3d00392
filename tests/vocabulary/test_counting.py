"""Word counting: chunks change nothing, and discarded words are counted."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertworks.text.document import Counts
from bertworks.vocabulary.algorithms import KINDS
from bertworks.vocabulary.counting import count_words, word_splitter

UNUSUAL_CHARACTERS = "abAS'tTéİß ,.!$\t\n\r\x0b\x0c\x1c\xa0\u200b\u0301\u3000京北，。“ｱ7½ \u2581"


@pytest.mark.parametrize("cased", [True, False])
@pytest.mark.parametrize("name", ["wordpiece", "byte-bpe"])
@given(text=st.text(alphabet=UNUSUAL_CHARACTERS, max_size=40))
@settings(max_examples=300, deadline=None)
def test_counting_by_chunks_equals_splitting_the_whole_text(name: str, cased: bool, text: str) -> None:
    backend = KINDS[name].untrained_tokenizer(cased)
    words = count_words([text], backend, KINDS[name].chunks(cased), 1000, Counts())
    assert words == Counter(word_splitter(backend)(text))


def test_unigram_words_behind_chinese_punctuation_get_no_space_mark() -> None:
    kind = KINDS["unigram"]
    words = count_words(["我们，你们 ab"], kind.untrained_tokenizer(False), kind.chunks(False), 1000, Counts())
    assert words == {",": 1, "▁ab": 1, "▁我们": 1, "你们": 1}


def test_above_the_limit_the_rarest_words_are_left_out_and_counted() -> None:
    kind, counts = KINDS["wordpiece"], Counts()
    words = count_words(["a a a b b c d"], kind.untrained_tokenizer(False), kind.chunks(False), 2, counts)
    assert words == {"a": 3, "b": 2}
    assert counts["words left out: too many distinct words"] == 2
