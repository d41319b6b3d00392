"""Coverage: every statistic computed by hand on a few words."""

from __future__ import annotations

import pytest
import tokenizers

from bertworks.errors import InputError
from bertworks.vocabulary.algorithms import KINDS, Inventory, wordpiece_backend
from bertworks.vocabulary.coverage import measure_coverage

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing", "##s", ",", "z"]


def test_wordpiece_coverage_by_hand() -> None:
    # play playing plays , 京 京 ze: 7 words; 1 + 2 + 2 + 1 + 1 + 1 + 1 = 9 tokens; 4 + 7 + 5 + 1 + 1 + 1 + 2 letters.
    coverage = measure_coverage(wordpiece_backend(TOKENS, cased=False), ["play playing", "Plays, 京京 zé"])
    assert (coverage.num_words, coverage.num_tokens) == (7, 9)
    assert coverage.unknown_ratio == pytest.approx(3 / 7)
    assert coverage.whole_word_ratio == pytest.approx(2 / 7)
    assert coverage.tokens_per_word == pytest.approx(9 / 7)
    assert coverage.characters_per_token == pytest.approx(21 / 9)
    assert coverage.used_token_ratio == pytest.approx(5 / 10)  # [UNK] play ##ing ##s ,
    assert coverage.unknown_words == (("京", 2), ("ze", 1))
    assert coverage.unknown_characters == (("京", 2), ("e", 1))


def test_only_the_most_frequent_unknown_words_are_shown() -> None:
    coverage = measure_coverage(wordpiece_backend(TOKENS, cased=False), ["x y y q q q"], num_examples=2)
    assert coverage.unknown_words == (("q", 3), ("y", 2))


def test_byte_bpe_counts_characters_not_bytes_and_ignores_white_space() -> None:
    tokens = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    backend = KINDS["byte-bpe"].build(Inventory(tokens), cased=True)
    # "京é" is 3 + 2 bytes, " ab" is 3: 8 tokens, 4 characters; the line break is not a word.
    coverage = measure_coverage(backend, ["京é ab\n"])
    assert (coverage.num_words, coverage.num_tokens, coverage.unknown_ratio) == (2, 8, 0.0)
    assert coverage.characters_per_token == pytest.approx(4 / 8)


def test_byte_bpe_counts_every_character_once() -> None:
    tokens = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    backend = KINDS["byte-bpe"].build(Inventory(tokens), cased=True)
    text = "".join(map(chr, range(0xC0, 0x1000, 7)))
    characters = "".join(text.split())
    coverage = measure_coverage(backend, [characters])
    assert coverage.characters_per_token * coverage.num_tokens == pytest.approx(len(characters))


def test_unigram_counts_unknown_characters_without_the_space_mark() -> None:
    tokens = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "▁", "a", "▁ab")
    backend = KINDS["unigram"].build(Inventory(tokens, scores=(0, 0, 0, 0, 0, -3.0, -3.0, -1.0)), cased=False)
    coverage = measure_coverage(backend, ["ab ab xa"])
    assert (coverage.num_words, coverage.num_tokens) == (3, 5)  # ▁ab ▁ab | ▁ x a
    assert coverage.whole_word_ratio == pytest.approx(2 / 3)
    assert coverage.unknown_characters == (("x", 1),)
    assert coverage.characters_per_token == pytest.approx(6 / 5)


def test_text_without_words_is_rejected() -> None:
    with pytest.raises(InputError, match="contain no words"):
        measure_coverage(wordpiece_backend(TOKENS, cased=False), [" "])
