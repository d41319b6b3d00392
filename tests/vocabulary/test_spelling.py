"""The spelling of words: bytes, strokes, shuffled strokes, and symbols of special tokens."""

from __future__ import annotations

from collections import Counter

import pytest

from bertworks.errors import SettingsError
from bertworks.vocabulary.algorithms import KINDS, Inventory
from bertworks.vocabulary.spelling import BEGIN, END, check_spelling, load_strokes, spell_vocabulary, spell_word
from bertworks.vocabulary.tokenizer import Tokenizer

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SEPARATOR = 8


def test_a_word_is_its_bytes_between_begin_and_end():
    assert spell_word("ab", "characters", 6).tolist() == [BEGIN, 97, 98, END, 0, 0]
    assert spell_word("é", "characters", 5).tolist() == [BEGIN, 0xC3, 0xA9, END, 0]


def test_a_long_word_is_truncated_and_keeps_its_end_symbol():
    assert spell_word("abcdef", "characters", 5).tolist() == [BEGIN, 97, 98, 99, END]


def test_load_strokes_returns_the_strokes_of_characters():
    table, kinds = load_strokes()
    strokes = {
        character: "".join(kinds[ord(letter) - ord("a")] for letter in table[character]) for character in "一十木林"
    }
    assert strokes == {"一": "一", "十": "一〡", "木": "一〡㇒㇏", "林": "一〡㇒㇔一〡㇒㇏"}
    assert len(table) == 20_901
    assert len(kinds) == 25


def test_strokes_of_a_word_are_those_of_its_characters_with_a_mark_between():
    first, second = spell_word("一", "strokes", 8), spell_word("十", "strokes", 8)
    word = spell_word("一十", "strokes", 8).tolist()
    assert word == [BEGIN, first[1], SEPARATOR, *second[1:3].tolist(), END, 0, 0]


def test_ascii_letters_keep_their_codes_and_other_characters_share_a_symbol():
    assert spell_word("T一，", "strokes", 9).tolist()[1:3] == [ord("T"), SEPARATOR]
    assert spell_word("，", "strokes", 4)[1] == spell_word("。", "strokes", 4)[1]


def test_shuffled_strokes_are_a_permutation_of_the_strokes():
    characters = [chr(code) for code in range(0x4E00, 0x4E00 + 20_901)]
    true, shuffled = (
        [spell_word(character, name, 50).tobytes() for character in characters]
        for name in ("strokes", "shuffled-strokes")
    )
    assert Counter(true) == Counter(shuffled)
    assert sum(map(bytes.__eq__, true, shuffled)) < 0.02 * len(true)


def test_special_tokens_have_separate_symbols():
    tokenizer = Tokenizer.from_backend(KINDS["words"].build(Inventory((*SPECIALS, "cat")), cased=False))
    table = spell_vocabulary(tokenizer, "characters", 7)
    assert table[5].tolist() == [BEGIN, *b"cat", END, 0, 0]
    assert table[:5, 1].tolist() == [3, 4, 5, 6, 7]
    assert (table[:5, 2] == END).all()


def test_an_unknown_spelling_is_rejected():
    with pytest.raises(SettingsError, match="no spelling 'runes'; choose one of: characters, strokes"):
        check_spelling("runes")
