"""Surface forms of tokens: text without marks, position in a word, and decoded text."""

from __future__ import annotations

import pytest

from bertworks.vocabulary.surface_forms import SurfaceForm, decode_tokens, surface_form
from bertworks.vocabulary.tokenizer import Tokenizer
from bertworks.vocabulary.training import VocabularySettings, train

TEXT = "the river and the stone and the river."
VOCAB_SIZES = {"wordpiece": 40, "bpe": 40, "byte-bpe": 275, "unigram": 30, "words": 12}


def tokenizer_of(kind: str) -> Tokenizer:
    return Tokenizer.from_backend(train([TEXT] * 20, VocabularySettings(kind=kind, vocab_size=VOCAB_SIZES[kind])))


@pytest.fixture(params=list(VOCAB_SIZES))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return tokenizer_of(request.param)


def test_surface_forms_concatenate_to_the_text(tokenizer: Tokenizer):
    forms = [surface_form(tokenizer, int(token_id)) for token_id in tokenizer.tokenize(TEXT).input_ids]
    assert "".join(form.text for form in forms) == TEXT.replace(" ", "")


def test_decoding_restores_the_text(tokenizer: Tokenizer):
    text = decode_tokens(tokenizer, tokenizer.tokenize(TEXT).input_ids.tolist())
    assert text.replace(" .", ".").strip() == TEXT


def test_is_continuation_agrees_with_word_starts(tokenizer: Tokenizer):
    tokens = tokenizer.tokenize("the river stone")
    start = int(tokens.word_starts.nonzero()[0][1])  # the first word of a text may have no space mark
    for token_id, begins_word in zip(
        tokens.input_ids[start:].tolist(), tokens.word_starts[start:].tolist(), strict=True
    ):
        assert surface_form(tokenizer, token_id).is_continuation in (None, not begins_word)


@pytest.mark.parametrize(
    ("kind", "token", "expected"),
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
def test_surface_forms_follow_the_marks_of_each_kind(kind: str, token: str, expected: SurfaceForm):
    tokenizer = tokenizer_of(kind)
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None, tokenizer.tokens
    assert surface_form(tokenizer, token_id) == expected
