"""Kinds other than WordPiece: pieces, offsets and words of byte-level BPE, BPE, Unigram and whole words."""

from __future__ import annotations

import pytest
import tokenizers

from bertworks.vocabulary.algorithms import KINDS, Inventory
from bertworks.vocabulary.backend import BackendModel
from bertworks.vocabulary.token_arrays import FlatTokens
from bertworks.vocabulary.word_boundaries import jieba_boundaries

ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
ALBERT = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@pytest.fixture
def byte_bpe() -> tokenizers.Tokenizer:
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    merges = (("a", "b"), ("Ġ", "ab"), ("c", "d"))
    return KINDS["byte-bpe"].build(Inventory((*ROBERTA, *alphabet, "ab", "Ġab", "cd"), merges=merges), cased=True)


@pytest.fixture
def unigram() -> tokenizers.Tokenizer:
    pieces = (*ALBERT, "▁", "a", "b", "▁ab", *"我喜欢北京。", "喜欢", "北京")
    scores = (*[0.0] * 5, -3.0, -3.0, -3.0, -1.0, *[-4.0] * 6, -2.0, -2.0)
    return KINDS["unigram"].build(Inventory(pieces, scores=scores), cased=True)


def pieces(backend: tokenizers.Tokenizer, flat: FlatTokens) -> list[str]:
    return [backend.id_to_token(number) or "" for number in flat.input_ids.tolist()]


def test_offsets_leave_out_the_space_a_piece_begins_with(byte_bpe: tokenizers.Tokenizer) -> None:
    placed = BackendModel(byte_bpe).encode("ab abcd.")
    assert [byte_bpe.id_to_token(piece.id) for piece in placed] == ["ab", "Ġab", "cd", "."]
    assert [(piece.start, piece.end) for piece in placed] == [(0, 2), (3, 5), (5, 7), (7, 8)]
    assert [piece.begins_word for piece in placed] == [True, True, False, True]


def test_the_bytes_of_one_character_share_its_offsets(byte_bpe: tokenizers.Tokenizer) -> None:
    placed = BackendModel(byte_bpe).encode("é😀")
    assert [(piece.start, piece.end) for piece in placed] == [(0, 1)] * 2 + [(1, 2)] * 4
    assert [piece.begins_word for piece in placed] == [True, False, True, False, False, False]


def test_sentences_keep_the_words_that_single_texts_have(byte_bpe: tokenizers.Tokenizer) -> None:
    flat = BackendModel(byte_bpe).encode_sentences(["abcd ab.", "cdab"])
    assert pieces(byte_bpe, flat) == ["ab", "cd", "Ġab", ".", "cd", "ab"]
    assert flat.word_starts.tolist() == [True, False, True, True, True, False]
    assert flat.sentence_ends.tolist() == [4, 6]


def test_a_space_behind_a_sentence_goes_into_the_next_one_but_not_over_a_line_end(
    byte_bpe: tokenizers.Tokenizer,
) -> None:
    flat = BackendModel(byte_bpe).encode_sentences(["ab. ", "ab.\n", "ab"])
    assert pieces(byte_bpe, flat) == ["ab", ".", "Ġab", ".", "ab"]
    assert flat.sentence_ends.tolist() == [2, 4, 5]


def test_sentences_of_nothing_have_no_pieces_and_keep_the_space(byte_bpe: tokenizers.Tokenizer) -> None:
    flat = BackendModel(byte_bpe).encode_sentences(["ab ", "", " ", "ab", "\n"])
    assert pieces(byte_bpe, flat) == ["ab", "Ġab"]
    assert flat.sentence_ends.tolist() == [1, 1, 1, 2, 2]
    none = BackendModel(byte_bpe).encode_sentences([])
    assert (none.input_ids.tolist(), none.sentence_ends.tolist(), none.word_starts.tolist()) == ([], [], [])


def test_joined_sentences_give_the_pieces_of_the_whole_line(byte_bpe: tokenizers.Tokenizer) -> None:
    sentences = ["ab cd. ", "cdab ab. ", "é ab"]
    whole = BackendModel(byte_bpe).encode("".join(sentences))
    assert BackendModel(byte_bpe).encode_sentences(sentences).input_ids.tolist() == [piece.id for piece in whole]


def test_lone_surrogates_are_read_as_the_replacement_character(byte_bpe: tokenizers.Tokenizer) -> None:
    cut = BackendModel(byte_bpe)
    assert (
        cut.encode_sentences(["a\ud800b"]).input_ids.tolist() == cut.encode_sentences(["a\ufffdb"]).input_ids.tolist()
    )


def test_unigram_words_are_what_stands_between_spaces(unigram: tokenizers.Tokenizer) -> None:
    flat = BackendModel(unigram).encode_sentences(["ab aab 我喜欢"])
    assert pieces(unigram, flat) == ["▁ab", "▁", "a", "a", "b", "▁", "我", "喜欢"]
    assert flat.word_starts.tolist() == [True, True, False, False, False, True, False, False]


def test_jieba_finds_the_words_of_unigram_pieces(unigram: tokenizers.Tokenizer) -> None:
    flat = BackendModel(unigram).encode_sentences(["我喜欢北京。", "ab aab"], jieba_boundaries)
    assert pieces(unigram, flat)[:5] == ["▁", "我", "喜欢", "北京", "。"]
    # The mark of the space and the character behind it are one place; a sentence without ideographs stays as it was.
    assert flat.word_starts.tolist() == [True, False, True, True, True, True, True, False, False, False]


def test_jieba_finds_the_words_of_byte_pieces(byte_bpe: tokenizers.Tokenizer) -> None:
    flat = BackendModel(byte_bpe).encode_sentences(["ab北京ab 喜欢"], jieba_boundaries)
    # ab | 北京 (three bytes each) | ab | the space and 喜 | 欢
    tail = [True, False, False, False, False, False, False]
    assert flat.word_starts.tolist() == [True, True, *[False] * 5, True, *tail]


def test_bpe_pieces_of_one_word_belong_together() -> None:
    inventory = Inventory((*BERT, "l", "o", "w", "w</w>", "lo"), merges=(("l", "o"),))
    backend = KINDS["bpe"].build(inventory, cased=False)
    flat = BackendModel(backend).encode_sentences(["Low low"])
    assert pieces(backend, flat) == ["lo", "w</w>", "lo", "w</w>"]
    assert flat.word_starts.tolist() == [True, False, True, False]


def test_whole_words_are_words_and_others_unknown() -> None:
    backend = KINDS["words"].build(Inventory((*BERT, "low", "北")), cased=False)
    placed = BackendModel(backend).encode("Low 北high")
    assert [backend.id_to_token(piece.id) for piece in placed] == ["low", "北", "[UNK]"]
    assert [(piece.start, piece.end, piece.begins_word) for piece in placed] == [
        (0, 3, True),
        (4, 5, True),
        (5, 9, True),
    ]
