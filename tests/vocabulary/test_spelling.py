"""How words are written: bytes, strokes, the same strokes at other characters; special pieces apart."""

from __future__ import annotations

from collections import Counter

import pytest

from bertworks.errors import SettingsError
from bertworks.vocabulary.algorithms import KINDS, Inventory
from bertworks.vocabulary.spelling import BEGIN, END, check_spelling, load_strokes, spell_vocabulary, spell_word
from bertworks.vocabulary.tokenizer import Tokenizer

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
NEXT = 8


def test_a_word_is_its_bytes_between_begin_and_end():
    assert spell_word("ab", "characters", 6).tolist() == [BEGIN, 97, 98, END, 0, 0]
    assert spell_word("é", "characters", 5).tolist() == [BEGIN, 0xC3, 0xA9, END, 0]


def test_a_long_word_is_cut_and_still_ends():
    assert spell_word("abcdef", "characters", 5).tolist() == [BEGIN, 97, 98, 99, END]


def test_the_table_knows_the_strokes_of_characters():
    table, kinds = load_strokes()
    written = {
        character: "".join(kinds[ord(letter) - ord("a")] for letter in table[character]) for character in "一十木林"
    }
    assert written == {"一": "一", "十": "一〡", "木": "一〡㇒㇏", "林": "一〡㇒㇔一〡㇒㇏"}
    assert len(table) == 20_901
    assert len(kinds) == 25


def test_strokes_of_a_word_are_those_of_its_characters_with_a_mark_between():
    one, ten = spell_word("一", "strokes", 8), spell_word("十", "strokes", 8)
    both = spell_word("一十", "strokes", 8).tolist()
    assert both == [BEGIN, one[1], NEXT, *ten[1:3].tolist(), END, 0, 0]


def test_letters_among_strokes_stay_what_they_are_and_other_signs_have_one_symbol():
    assert spell_word("T一，", "strokes", 9).tolist()[1:3] == [ord("T"), NEXT]
    assert spell_word("，", "strokes", 4)[1] == spell_word("。", "strokes", 4)[1]


def test_a_shuffled_table_has_the_same_strokes_at_other_characters():
    characters = [chr(number) for number in range(0x4E00, 0x4E00 + 20_901)]
    right, wrong = (
        [spell_word(one, name, 50).tobytes() for one in characters] for name in ("strokes", "shuffled-strokes")
    )
    assert Counter(right) == Counter(wrong)
    assert sum(map(bytes.__eq__, right, wrong)) < 0.02 * len(right)


def test_special_pieces_have_symbols_of_their_own():
    tokenizer = Tokenizer.from_backend(KINDS["words"].build(Inventory((*SPECIALS, "cat")), cased=False))
    table = spell_vocabulary(tokenizer, "characters", 7)
    assert table[5].tolist() == [BEGIN, *b"cat", END, 0, 0]
    assert table[:5, 1].tolist() == [3, 4, 5, 6, 7]
    assert (table[:5, 2] == END).all()


def test_an_unknown_spelling_is_refused():
    with pytest.raises(SettingsError, match="no spelling 'runes'; choose one of: characters, strokes"):
        check_spelling("runes")
