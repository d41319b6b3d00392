"""How pieces are written out: their marks taken away, where they stand in a word, and running text."""

from __future__ import annotations

import pytest

from bertworks.vocabulary.surface_forms import Written, piece_written, text_written
from bertworks.vocabulary.tokenizer import Tokenizer
from bertworks.vocabulary.training import VocabularySettings, train

TEXT = "the river and the stone and the river."
SIZES = {"wordpiece": 40, "bpe": 40, "byte-bpe": 275, "unigram": 30, "words": 12}


def tokenizer_of(kind: str) -> Tokenizer:
    return Tokenizer.of(train([TEXT] * 20, VocabularySettings(kind=kind, size=SIZES[kind])))


@pytest.fixture(params=list(SIZES))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return tokenizer_of(request.param)


def test_the_letters_of_all_pieces_are_those_of_the_text(tokenizer: Tokenizer):
    pieces = [piece_written(tokenizer, int(number)) for number in tokenizer.cut(TEXT).ids]
    assert "".join(piece.letters for piece in pieces) == TEXT.replace(" ", "")


def test_running_text_is_the_text(tokenizer: Tokenizer):
    found = text_written(tokenizer, tokenizer.cut(TEXT).ids.tolist())
    assert found.replace(" .", ".").strip() == TEXT


def test_a_word_is_a_beginning_and_what_continues_it(tokenizer: Tokenizer):
    cut = tokenizer.cut("the river stone")
    second = int(cut.begins_word.nonzero()[0][1])  # the first word of a text may lack the space that marks a beginning
    for number, begins in zip(cut.ids[second:].tolist(), cut.begins_word[second:].tolist(), strict=True):
        assert piece_written(tokenizer, number).continues in (None, not begins)


@pytest.mark.parametrize(
    ("kind", "piece", "written"),
    [
        ("wordpiece", "r", Written("r", None, False)),
        ("wordpiece", "##r", Written("r", False, True)),
        ("bpe", "r", Written("r", None, None, False)),
        ("bpe", "r</w>", Written("r", None, None, True)),
        ("byte-bpe", "r", Written("r", False, True)),
        ("byte-bpe", "Ġ", Written("", True, False)),
        ("byte-bpe", ".", Written(".", False, False)),
        ("unigram", "▁the", Written("the", True, False)),
        ("unigram", ".", Written(".", False, False)),
        ("words", "river", Written("river", None, False, True)),
    ],
)
def test_marks_are_read_as_each_kind_writes_them(kind: str, piece: str, written: Written):
    tokenizer = tokenizer_of(kind)
    number = tokenizer.id_of(piece)
    assert number is not None, tokenizer.pieces
    assert piece_written(tokenizer, number) == written
