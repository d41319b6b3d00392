"""Kinds: words, pieces, frames and special pieces of every kind of vocabulary."""

from __future__ import annotations

import json

import pytest
import tokenizers

from bertworks.errors import InputError, SettingsError
from bertworks.vocabulary.algorithms import KINDS, Inventory, detect_kind, get_kind, is_cased, wordpiece_backend

BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def byte_bpe() -> tokenizers.Tokenizer:
    bytes_ = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    pieces = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", *bytes_, "ab", "Ġab")
    return KINDS["byte-bpe"].build(Inventory(pieces, merges=(("a", "b"), ("Ġ", "ab"))), cased=True)


def unigram() -> tokenizers.Tokenizer:
    pieces = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "▁", "a", "b", "[", "]", "C", "L", "S", "▁ab")
    scores = (0.0, 0.0, 0.0, 0.0, 0.0, -3.0, -3.0, -3.0, -5.0, -5.0, -5.0, -5.0, -5.0, -1.0)
    return KINDS["unigram"].build(Inventory(pieces, scores=scores), cased=True)


def test_wordpiece_prefers_the_longest_piece() -> None:
    backend = wordpiece_backend([*BERT, "un", "una", "##able", "##ble", "##a", "##ffable"], cased=False)
    assert backend.encode("unable Unaffable").tokens == ["[CLS]", "una", "##ble", "una", "##ffable", "[SEP]"]


def test_wordpiece_takes_words_of_200_characters_and_not_of_201() -> None:
    backend = wordpiece_backend([*BERT, "a", "##a"], cased=False)
    assert len(backend.encode("a" * 200, add_special_tokens=False).tokens) == 200
    assert backend.encode("a" * 201, add_special_tokens=False).tokens == ["[UNK]"]
    assert json.loads(backend.to_str())["model"]["max_input_chars_per_word"] == 200


@pytest.mark.parametrize(("cased", "expected"), [(False, ["cafe"]), (True, ["Café"])])
def test_case_and_accents_go_together(cased: bool, expected: list[str]) -> None:
    backend = wordpiece_backend([*BERT, "cafe", "Café"], cased=cased)
    assert backend.encode("Café", add_special_tokens=False).tokens == expected
    assert is_cased(backend) is cased


@pytest.mark.parametrize("name", ["wordpiece", "words"])
def test_chinese_characters_are_words_of_their_own(name: str) -> None:
    backend = KINDS[name].build(Inventory((*BERT, "北", "京", "ok")), cased=False)
    assert backend.encode("北京ok", add_special_tokens=False).tokens == ["北", "京", "ok"]


def test_bpe_marks_the_end_of_a_word() -> None:
    pieces = (*BERT, "l", "o", "w", "w</w>", "京</w>", "lo", "low</w>")
    backend = KINDS["bpe"].build(Inventory(pieces, merges=(("l", "o"), ("lo", "w</w>"))), cased=False)
    encoding = backend.encode("Low 京low", add_special_tokens=False)
    assert encoding.tokens == ["low</w>", "京</w>", "low</w>"]
    assert backend.decode(encoding.ids) == "low 京 low"


def test_bert_frames_a_pair_with_segments_0_and_1() -> None:
    encoding = wordpiece_backend([*BERT, "a", "b"], cased=False).encode("a", "b b")
    assert encoding.tokens == ["[CLS]", "a", "[SEP]", "b", "b", "[SEP]"]
    assert encoding.type_ids == [0, 0, 0, 1, 1, 1]


def test_roberta_frames_a_pair_with_two_ends_between_and_one_segment() -> None:
    encoding = byte_bpe().encode("ab", "ab ab")
    assert encoding.tokens == ["<s>", "ab", "</s>", "</s>", "ab", "Ġab", "</s>"]
    assert encoding.type_ids == [0] * 7
    assert encoding.offsets[5] == (3, 5)  # without the space before it


def test_byte_bpe_restores_every_text() -> None:
    backend = byte_bpe()
    text = " ab\n京 é  \U0001f600"
    assert backend.decode(backend.encode(text, add_special_tokens=False).ids) == text


def test_unigram_takes_the_likeliest_pieces_and_restores_spaces() -> None:
    backend = unigram()
    encoding = backend.encode("ab  aab")
    assert encoding.tokens == ["[CLS]", "▁ab", "▁", "a", "a", "b", "[SEP]"]
    assert backend.decode(encoding.ids) == "ab aab"


def test_special_pieces_in_running_text_are_plain_text() -> None:
    wordpiece = wordpiece_backend([*BERT, "[", "]", "mask"], cased=False)
    assert wordpiece.encode("[MASK]", add_special_tokens=False).tokens == ["[", "mask", "]"]
    assert unigram().encode("ab[CLS]", add_special_tokens=False).tokens == ["▁ab", "[", "C", "L", "S", "]"]
    assert byte_bpe().encode("<s>", add_special_tokens=False).tokens == ["<", "s", ">"]


def test_special_pieces_are_registered_in_the_saved_file() -> None:
    backend = wordpiece_backend([*BERT, "[", "]", "mask"], cased=False)
    as_others_load_it = tokenizers.Tokenizer.from_str(backend.to_str())
    assert as_others_load_it.encode("[MASK]", add_special_tokens=False).tokens == ["[MASK]"]


@pytest.mark.parametrize("name", list(KINDS))
def test_a_backend_remembers_its_kind(name: str) -> None:
    kind = KINDS[name]
    pieces = (*kind.specials.order, "a")
    assert detect_kind(kind.build(Inventory(pieces, scores=(0.0,) * 6), cased=True)).name == name


def test_a_piece_that_appears_twice_is_refused_with_its_line() -> None:
    with pytest.raises(InputError, match=r"line 8: piece '##ing' appears twice \(first on line 6\)"):
        wordpiece_backend([*BERT, "##ing", "a", "##ing"], cased=False)


def test_a_vocabulary_without_special_pieces_is_refused() -> None:
    with pytest.raises(InputError, match=r"lacks \[PAD\] \[MASK\]"):
        wordpiece_backend(["[UNK]", "[CLS]", "[SEP]", "a"], cased=False)


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="'wordpieces' is unknown; choose one of: wordpiece, bpe"):
        get_kind("wordpieces")
