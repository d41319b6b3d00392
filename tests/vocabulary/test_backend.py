"""Tokens, offsets and words of the kinds other than WordPiece: byte-level BPE, BPE, Unigram, whole words."""

from __future__ import annotations

import pytest
import tokenizers

from bertworks.vocabulary.algorithms import KINDS, Inventory
from bertworks.vocabulary.backend import BackendModel
from bertworks.vocabulary.token_arrays import FlatTokens, TokenizedText
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
    tokens = (*ALBERT, "▁", "a", "b", "▁ab", *"我喜欢北京。", "喜欢", "北京")
    scores = (*[0.0] * 5, -3.0, -3.0, -3.0, -1.0, *[-4.0] * 6, -2.0, -2.0)
    return KINDS["unigram"].build(Inventory(tokens, scores=scores), cased=True)


def tokens_of(backend: tokenizers.Tokenizer, tokens: FlatTokens | TokenizedText) -> list[str]:
    return [backend.id_to_token(token_id) or "" for token_id in tokens.input_ids.tolist()]


def test_offsets_exclude_the_space_of_a_token(byte_bpe: tokenizers.Tokenizer) -> None:
    tokens = BackendModel(byte_bpe).encode("ab abcd.")
    assert tokens_of(byte_bpe, tokens) == ["ab", "Ġab", "cd", "."]
    assert tokens.offsets.tolist() == [[0, 2], [3, 5], [5, 7], [7, 8]]
    assert tokens.word_starts.tolist() == [True, True, False, True]


def test_the_bytes_of_one_character_share_its_offsets(byte_bpe: tokenizers.Tokenizer) -> None:
    tokens = BackendModel(byte_bpe).encode("é😀")
    assert tokens.offsets.tolist() == [[0, 1]] * 2 + [[1, 2]] * 4
    assert tokens.word_starts.tolist() == [True, False, True, False, False, False]


def test_encode_sentences_marks_word_starts(byte_bpe: tokenizers.Tokenizer) -> None:
    flat = BackendModel(byte_bpe).encode_sentences(["abcd ab.", "cdab"])
    assert tokens_of(byte_bpe, flat) == ["ab", "cd", "Ġab", ".", "cd", "ab"]
    assert flat.word_starts.tolist() == [True, False, True, True, True, False]
    assert flat.sentence_ends.tolist() == [4, 6]


def test_a_trailing_space_moves_to_the_next_sentence_but_not_across_lines(
    byte_bpe: tokenizers.Tokenizer,
) -> None:
    flat = BackendModel(byte_bpe).encode_sentences(["ab. ", "ab.\n", "ab"])
    assert tokens_of(byte_bpe, flat) == ["ab", ".", "Ġab", ".", "ab"]
    assert flat.sentence_ends.tolist() == [2, 4, 5]


def test_empty_sentences_have_no_tokens_and_keep_the_pending_space(byte_bpe: tokenizers.Tokenizer) -> None:
    flat = BackendModel(byte_bpe).encode_sentences(["ab ", "", " ", "ab", "\n"])
    assert tokens_of(byte_bpe, flat) == ["ab", "Ġab"]
    assert flat.sentence_ends.tolist() == [1, 1, 1, 2, 2]
    empty = BackendModel(byte_bpe).encode_sentences([])
    assert (empty.input_ids.tolist(), empty.sentence_ends.tolist(), empty.word_starts.tolist()) == ([], [], [])


def test_sentences_of_a_line_have_the_tokens_of_the_line(byte_bpe: tokenizers.Tokenizer) -> None:
    sentences = ["ab cd. ", "cdab ab. ", "é ab"]
    line = BackendModel(byte_bpe).encode("".join(sentences))
    assert BackendModel(byte_bpe).encode_sentences(sentences).input_ids.tolist() == line.input_ids.tolist()


def test_lone_surrogates_become_the_replacement_character(byte_bpe: tokenizers.Tokenizer) -> None:
    model = BackendModel(byte_bpe)
    surrogate, replacement = (model.encode_sentences([text]).input_ids for text in ("a\ud800b", "a\ufffdb"))
    assert surrogate.tolist() == replacement.tolist()


def test_unigram_words_are_separated_by_spaces(unigram: tokenizers.Tokenizer) -> None:
    flat = BackendModel(unigram).encode_sentences(["ab aab 我喜欢"])
    assert tokens_of(unigram, flat) == ["▁ab", "▁", "a", "a", "b", "▁", "我", "喜欢"]
    assert flat.word_starts.tolist() == [True, True, False, False, False, True, False, False]


def test_jieba_finds_the_words_of_unigram_tokens(unigram: tokenizers.Tokenizer) -> None:
    flat = BackendModel(unigram).encode_sentences(["我喜欢北京。", "ab aab"], jieba_boundaries)
    assert tokens_of(unigram, flat)[:5] == ["▁", "我", "喜欢", "北京", "。"]
    # The space mark and the character after it have the same start; a sentence without ideographs is unchanged.
    assert flat.word_starts.tolist() == [True, False, True, True, True, True, True, False, False, False]


def test_jieba_finds_the_words_of_byte_level_tokens(byte_bpe: tokenizers.Tokenizer) -> None:
    flat = BackendModel(byte_bpe).encode_sentences(["ab北京ab 喜欢"], jieba_boundaries)
    # ab | 北京 (three bytes each) | ab | the space and 喜 | 欢
    tail = [True, False, False, False, False, False, False]
    assert flat.word_starts.tolist() == [True, True, *[False] * 5, True, *tail]


def test_bpe_tokens_of_one_word_share_a_word() -> None:
    inventory = Inventory((*BERT, "l", "o", "w", "w</w>", "lo"), merges=(("l", "o"),))
    backend = KINDS["bpe"].build(inventory, cased=False)
    flat = BackendModel(backend).encode_sentences(["Low low"])
    assert tokens_of(backend, flat) == ["lo", "w</w>", "lo", "w</w>"]
    assert flat.word_starts.tolist() == [True, False, True, False]


def test_whole_word_vocabularies_map_other_words_to_unknown() -> None:
    backend = KINDS["words"].build(Inventory((*BERT, "low", "北")), cased=False)
    tokens = BackendModel(backend).encode("Low 北high")
    assert tokens_of(backend, tokens) == ["low", "北", "[UNK]"]
    assert tokens.offsets.tolist() == [[0, 3], [4, 5], [5, 9]]
    assert tokens.word_starts.tolist() == [True, True, True]
