"""What tokens spell: scripts, parts of characters, single letters and how tokens join to words, per kind."""

from __future__ import annotations

import pytest
import tokenizers

from bertworks.vocabulary.algorithms import KINDS, Inventory, wordpiece_backend
from bertworks.vocabulary.token_scripts import TokenScripts, is_alphabetic, token_scripts
from bertworks.vocabulary.tokenizer import Tokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def wordpiece(*tokens: str) -> Tokenizer:
    return Tokenizer.from_backend(wordpiece_backend([*SPECIALS, *tokens], cased=False))


def script_names(scripts: TokenScripts) -> list[str | None]:
    return [scripts.scripts[index - 1] if index else None for index in scripts.script.tolist()]


def test_special_and_unused_tokens_and_punctuation_have_no_script() -> None:
    scripts = token_scripts(wordpiece("[unused0]", ",", "7", "play", "##ж", "我", "ᄀ"))
    assert script_names(scripts) == [None] * 8 + ["Latin", "Cyrillic", "Han", None]
    assert scripts.num_tokens == {"Latin": 1, "Cyrillic": 1, "Han": 1}


def test_single_letters_of_alphabets_and_parts_of_syllables_are_marked() -> None:
    scripts = token_scripts(wordpiece("a", "##ж", "ab", "我", "ᄀ"))
    assert scripts.is_letter.tolist() == [False] * 5 + [True, True, False, False, False]
    assert scripts.is_part.tolist() == [False] * 9 + [True]
    assert is_alphabetic("Cyrillic")
    assert not is_alphabetic("Han")


def test_wordpiece_joins_continuations_to_the_token_before() -> None:
    scripts = token_scripts(wordpiece("play", "##ing", "我"))
    assert scripts.joins_left.tolist() == [False] * 5 + [False, True, False]
    assert scripts.joins_right.tolist() == [False] * 5 + [True, True, True]


def test_bpe_joins_until_the_end_of_a_word() -> None:
    tokens = (*SPECIALS, "p", "ay</w>")
    scripts = token_scripts(Tokenizer.from_backend(KINDS["bpe"].build(Inventory(tokens, merges=()), cased=False)))
    assert scripts.joins_left.tolist()[5:] == [True, True]
    assert scripts.joins_right.tolist()[5:] == [True, False]


def test_byte_bpe_marks_bytes_and_joins_letters_only() -> None:
    tokens = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    tokenizer = Tokenizer.from_backend(KINDS["byte-bpe"].build(Inventory(tokens), cased=True))
    scripts = token_scripts(tokenizer)
    letter, comma, byte = (tokens.index(token) for token in ("a", ",", "ä"))  # "ä" stands for the byte 0xE4
    assert (scripts.is_part[letter], scripts.is_part[comma], scripts.is_part[byte]) == (False, False, True)
    assert (scripts.joins_left[letter], scripts.joins_right[letter]) == (True, True)
    assert scripts.joins_right[comma] == False  # noqa: E712


@pytest.mark.parametrize(("num_latin", "is_minor"), [(4, True), (5, False)])
def test_a_script_is_minor_below_half_of_the_largest(num_latin: int, is_minor: bool) -> None:
    scripts = token_scripts(wordpiece(*"我你他她它们这那有来", *"abcde"[:num_latin]))  # 10 tokens of Han script
    assert scripts.is_minor("Latin") == is_minor
    assert scripts.is_minor("Cyrillic")


def test_a_multilingual_vocabulary_has_no_minor_script() -> None:
    ranges = {"Latin": 0x1E00, "Han": 0x4E00, "Hangul": 0xAC00, "Cyrillic": 0x0410}
    tokens = [f"{chr(first)}{chr(first + 1)}{index}" for first in ranges.values() for index in range(1_000)]
    scripts = token_scripts(wordpiece(*tokens, "αβ"))
    assert scripts.is_multilingual
    assert not scripts.is_minor("Greek")
    assert not token_scripts(wordpiece(*tokens[:3_000])).is_multilingual


def test_the_arrays_of_a_vocabulary_are_built_once() -> None:
    tokenizer = wordpiece("play")
    assert token_scripts(tokenizer) is token_scripts(tokenizer)
