"""Coverage: every figure worked out by hand on a few words."""

from __future__ import annotations

import pytest
import tokenizers

from bertworks.errors import InputError
from bertworks.vocabulary.algorithms import KINDS, Inventory, wordpiece_backend
from bertworks.vocabulary.coverage import measure_coverage

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing", "##s", ",", "z"]


def test_wordpiece_figures_by_hand() -> None:
    # play playing plays , 京 京 ze: 7 words; 1 + 2 + 2 + 1 + 1 + 1 + 1 = 9 pieces; 4 + 7 + 5 + 1 + 1 + 1 + 2 letters.
    found = measure_coverage(wordpiece_backend(PIECES, cased=False), ["play playing", "Plays, 京京 zé"])
    assert (found.num_words, found.num_tokens) == (7, 9)
    assert found.unknown_ratio == pytest.approx(3 / 7)
    assert found.whole_word_ratio == pytest.approx(2 / 7)
    assert found.tokens_per_word == pytest.approx(9 / 7)
    assert found.characters_per_token == pytest.approx(21 / 9)
    assert found.used_token_ratio == pytest.approx(5 / 10)  # [UNK] play ##ing ##s ,
    assert found.unknown_words == (("京", 2), ("ze", 1))
    assert found.unknown_characters == (("京", 2), ("e", 1))


def test_only_the_most_frequent_unknown_words_are_shown() -> None:
    found = measure_coverage(wordpiece_backend(PIECES, cased=False), ["x y y q q q"], num_examples=2)
    assert found.unknown_words == (("q", 3), ("y", 2))


def test_byte_bpe_counts_characters_not_bytes_and_no_blank_words() -> None:
    pieces = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    backend = KINDS["byte-bpe"].build(Inventory(pieces), cased=True)
    # "京é" is 3 + 2 bytes, " ab" is 3: 8 pieces, 4 characters; the line break is no word.
    found = measure_coverage(backend, ["京é ab\n"])
    assert (found.num_words, found.num_tokens, found.unknown_ratio) == (2, 8, 0.0)
    assert found.characters_per_token == pytest.approx(4 / 8)


def test_byte_bpe_tells_first_bytes_of_all_characters() -> None:
    pieces = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    backend = KINDS["byte-bpe"].build(Inventory(pieces), cased=True)
    text = "".join(map(chr, range(0xC0, 0x1000, 7)))
    letters = "".join(text.split())
    found = measure_coverage(backend, [letters])
    assert found.characters_per_token * found.num_tokens == pytest.approx(len(letters))


def test_unigram_counts_unknown_characters_without_the_space_mark() -> None:
    pieces = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "▁", "a", "▁ab")
    backend = KINDS["unigram"].build(Inventory(pieces, scores=(0, 0, 0, 0, 0, -3.0, -3.0, -1.0)), cased=False)
    found = measure_coverage(backend, ["ab ab xa"])
    assert (found.num_words, found.num_tokens) == (3, 5)  # ▁ab ▁ab | ▁ x a
    assert found.whole_word_ratio == pytest.approx(2 / 3)
    assert found.unknown_characters == (("x", 1),)
    assert found.characters_per_token == pytest.approx(6 / 5)


def test_text_without_a_word_is_refused() -> None:
    with pytest.raises(InputError, match="not a single word"):
        measure_coverage(wordpiece_backend(PIECES, cased=False), [" "])
