"""Vocabulary extension: which words are added, and with which ids."""

from __future__ import annotations

import pytest

from bertworks.errors import InputError, SettingsError
from bertworks.text.document import Counts
from bertworks.vocabulary.algorithms import KINDS, Inventory, wordpiece_backend
from bertworks.vocabulary.extension import NewToken, extend

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "[unused1]", "car", "##dio", "##gram", "##s", "a"]
# cardio: 2 tokens, 6 times -> 6; cardiogram: 3 tokens, 5 times -> 10; cars: 2 tokens, 7 times -> 7; car: one token.
TEXT = ["cardio " * 6 + "cardiogram " * 5 + "Cars " * 7 + "car " * 50]


def test_words_that_save_most_tokens_fill_unused_entries_first_and_then_follow_the_last_id() -> None:
    extension = extend(wordpiece_backend(TOKENS, cased=False), TEXT, 3)
    assert extension.new_tokens == (
        NewToken("cardiogram", 5, ("car", "##dio", "##gram"), 5),
        NewToken("cars", 6, ("car", "##s"), 7),
        NewToken("cardio", 12, ("car", "##dio"), 6),
    )
    assert extension.num_appended == 1
    encoding = extension.backend.encode("cardiograms car [MASK]", add_special_tokens=False)
    assert encoding.tokens == ["cardiogram", "##s", "car", "[UNK]", "[UNK]", "[UNK]"]
    assert extension.backend.get_vocab_size() == 13


def test_existing_tokens_keep_their_ids_and_the_input_backend_is_unchanged() -> None:
    backend = wordpiece_backend(TOKENS, cased=False)
    extended = extend(backend, TEXT, 3).backend.get_vocab()
    assert {token: extended[token] for token in TOKENS if "unused" not in token} == {
        token: token_id for token_id, token in enumerate(TOKENS) if "unused" not in token
    }
    assert backend.get_vocab() == {token: token_id for token_id, token in enumerate(TOKENS)}


def test_numbers_addresses_and_rare_words_are_not_added() -> None:
    counts = Counts()
    text = ["aa2a 1900 http://cars.com/cardio me@cars.com " * 9 + "cars " * 4]
    assert extend(wordpiece_backend(TOKENS, cased=False), text, 9, counts=counts).new_tokens == ()
    assert counts["addresses left out"] == 18


def test_an_unknown_word_is_worth_as_much_as_its_characters() -> None:
    # 京 5 times -> 5; cars 4 times -> 4.
    extension = extend(wordpiece_backend(TOKENS, cased=False), ["京京京京京 cars cars cars cars"], 2, min_count=4)
    assert [(new.token, new.subwords) for new in extension.new_tokens] == [("京", ("[UNK]",)), ("cars", ("car", "##s"))]


def test_other_kinds_cannot_be_extended() -> None:
    kind = KINDS["words"]
    with pytest.raises(SettingsError, match="extending a words vocabulary"):
        extend(kind.build(Inventory((*kind.specials.order, "a")), cased=False), TEXT, 1)


def test_empty_text_and_zero_new_tokens_are_rejected() -> None:
    backend = wordpiece_backend(TOKENS, cased=False)
    with pytest.raises(InputError, match="contain no words"):
        extend(backend, [""], 1)
    with pytest.raises(SettingsError, match="num_new_tokens = 0"):
        extend(backend, TEXT, 0)
