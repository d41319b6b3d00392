"""How pieces are written out: their marks taken away, where they stand in a word, and running text."""

from __future__ import annotations

import pytest

from bertworks.vocabulary.surface_forms import SurfaceForm, decode_tokens, surface_form
from bertworks.vocabulary.tokenizer import Tokenizer
from bertworks.vocabulary.training import VocabularySettings, train

TEXT = "the river and the stone and the river."
SIZES = {"wordpiece": 40, "bpe": 40, "byte-bpe": 275, "unigram": 30, "words": 12}


def tokenizer_of(kind: str) -> Tokenizer:
    return Tokenizer.from_backend(train([TEXT] * 20, VocabularySettings(kind=kind, vocab_size=SIZES[kind])))


@pytest.fixture(params=list(SIZES))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return tokenizer_of(request.param)


def test_the_letters_of_all_pieces_are_those_of_the_text(tokenizer: Tokenizer):
    pieces = [surface_form(tokenizer, int(number)) for number in tokenizer.tokenize(TEXT).input_ids]
    assert "".join(piece.text for piece in pieces) == TEXT.replace(" ", "")


def test_running_text_is_the_text(tokenizer: Tokenizer):
    found = decode_tokens(tokenizer, tokenizer.tokenize(TEXT).input_ids.tolist())
    assert found.replace(" .", ".").strip() == TEXT


def test_a_word_is_a_beginning_and_what_continues_it(tokenizer: Tokenizer):
    cut = tokenizer.tokenize("the river stone")
    second = int(cut.begins_word.nonzero()[0][1])  # the first word of a text may lack the space that marks a beginning
    for number, begins in zip(cut.input_ids[second:].tolist(), cut.begins_word[second:].tolist(), strict=True):
        assert surface_form(tokenizer, number).is_continuation in (None, not begins)


@pytest.mark.parametrize(
    ("kind", "piece", "written"),
    [
        ("wordpiece", "r", SurfaceForm("r", None, False)),
        ("wordpiece", "##r", SurfaceForm("r", False, True)),
        ("bpe", "r", SurfaceForm("r", None, None, False)),
        ("bpe", "r</w>", SurfaceForm("r", None, None, True)),
        ("byte-bpe", "r", SurfaceForm("r", False, True)),
        ("byte-bpe", "Ġ", SurfaceForm("", True, False)),
        ("byte-bpe", ".", SurfaceForm(".", False, False)),
        ("unigram", "▁the", SurfaceForm("the", True, False)),
        ("unigram", ".", SurfaceForm(".", False, False)),
        ("words", "river", SurfaceForm("river", None, False, True)),
    ],
)
def test_marks_are_read_as_each_kind_writes_them(kind: str, piece: str, written: SurfaceForm):
    tokenizer = tokenizer_of(kind)
    number = tokenizer.token_to_id(piece)
    assert number is not None, tokenizer.tokens
    assert surface_form(tokenizer, number) == written
