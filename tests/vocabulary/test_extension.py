"""Extending: which words are worth a piece, and where they go."""

from __future__ import annotations

import pytest

from bertworks.errors import InputError, SettingsError
from bertworks.text.document import Counts
from bertworks.vocabulary.algorithms import KINDS, Inventory, wordpiece_backend
from bertworks.vocabulary.extension import NewToken, extend

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "[unused1]", "car", "##dio", "##gram", "##s", "a"]
# cardio: 2 pieces, 6 times -> 6; cardiogram: 3 pieces, 5 times -> 10; cars: 2 pieces, 7 times -> 7; car: whole.
TEXT = ["cardio " * 6 + "cardiogram " * 5 + "Cars " * 7 + "car " * 50]


def test_words_that_save_most_pieces_fill_the_free_slots_first_and_then_follow_the_last_id() -> None:
    extension = extend(wordpiece_backend(PIECES, cased=False), TEXT, 3)
    assert extension.new_tokens == (
        NewToken("cardiogram", 5, ("car", "##dio", "##gram"), 5),
        NewToken("cars", 6, ("car", "##s"), 7),
        NewToken("cardio", 12, ("car", "##dio"), 6),
    )
    assert extension.num_appended == 1
    encoding = extension.backend.encode("cardiograms car [MASK]", add_special_tokens=False)
    assert encoding.tokens == ["cardiogram", "##s", "car", "[UNK]", "[UNK]", "[UNK]"]
    assert extension.backend.get_vocab_size() == 13


def test_old_pieces_keep_their_ids_and_the_given_backend_is_not_changed() -> None:
    backend = wordpiece_backend(PIECES, cased=False)
    new = extend(backend, TEXT, 3).backend.get_vocab()
    assert {piece: new[piece] for piece in PIECES if "unused" not in piece} == {
        piece: number for number, piece in enumerate(PIECES) if "unused" not in piece
    }
    assert backend.get_vocab() == {piece: number for number, piece in enumerate(PIECES)}


def test_numbers_addresses_and_rare_words_are_not_added() -> None:
    counts = Counts()
    text = ["aa2a 1900 http://cars.com/cardio me@cars.com " * 9 + "cars " * 4]
    assert extend(wordpiece_backend(PIECES, cased=False), text, 9, counts=counts).new_tokens == ()
    assert counts["addresses passed over"] == 18


def test_an_unknown_word_is_worth_as_much_as_its_characters() -> None:
    # 京 5 times -> 5; cars 4 times -> 4.
    extension = extend(wordpiece_backend(PIECES, cased=False), ["京京京京京 cars cars cars cars"], 2, min_count=4)
    assert [(one.token, one.subwords) for one in extension.new_tokens] == [("京", ("[UNK]",)), ("cars", ("car", "##s"))]


def test_other_kinds_are_refused() -> None:
    kind = KINDS["words"]
    with pytest.raises(SettingsError, match="extending a words vocabulary"):
        extend(kind.build(Inventory((*kind.specials.order, "a")), cased=False), TEXT, 1)


def test_no_text_and_no_new_pieces_are_refused() -> None:
    backend = wordpiece_backend(PIECES, cased=False)
    with pytest.raises(InputError, match="not a single word"):
        extend(backend, [""], 1)
    with pytest.raises(SettingsError, match="num_new = 0"):
        extend(backend, TEXT, 0)
