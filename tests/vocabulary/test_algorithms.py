"""Kinds of vocabulary: words, tokens, templates and special tokens of each."""

from __future__ import annotations

import json

import pytest
import tokenizers

from bertworks.errors import InputError, SettingsError
from bertworks.vocabulary.algorithms import KINDS, Inventory, detect_kind, get_kind, is_cased, wordpiece_backend

BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def byte_bpe() -> tokenizers.Tokenizer:
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokens = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", *alphabet, "ab", "Ġab")
    return KINDS["byte-bpe"].build(Inventory(tokens, merges=(("a", "b"), ("Ġ", "ab"))), cased=True)


def unigram() -> tokenizers.Tokenizer:
    tokens = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "▁", "a", "b", "[", "]", "C", "L", "S", "▁ab")
    scores = (0.0, 0.0, 0.0, 0.0, 0.0, -3.0, -3.0, -3.0, -5.0, -5.0, -5.0, -5.0, -5.0, -1.0)
    return KINDS["unigram"].build(Inventory(tokens, scores=scores), cased=True)


def test_wordpiece_prefers_the_longest_token() -> None:
    backend = wordpiece_backend([*BERT, "un", "una", "##able", "##ble", "##a", "##ffable"], cased=False)
    assert backend.encode("unable Unaffable").tokens == ["[CLS]", "una", "##ble", "una", "##ffable", "[SEP]"]


def test_wordpiece_accepts_words_of_200_characters_and_not_of_201() -> None:
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
def test_chinese_characters_are_single_words(name: str) -> None:
    backend = KINDS[name].build(Inventory((*BERT, "北", "京", "ok")), cased=False)
    assert backend.encode("北京ok", add_special_tokens=False).tokens == ["北", "京", "ok"]


def test_bpe_marks_the_end_of_a_word() -> None:
    tokens = (*BERT, "l", "o", "w", "w</w>", "京</w>", "lo", "low</w>")
    backend = KINDS["bpe"].build(Inventory(tokens, merges=(("l", "o"), ("lo", "w</w>"))), cased=False)
    encoding = backend.encode("Low 京low", add_special_tokens=False)
    assert encoding.tokens == ["low</w>", "京</w>", "low</w>"]
    assert backend.decode(encoding.ids) == "low 京 low"


def test_bert_pairs_have_token_types_0_and_1() -> None:
    encoding = wordpiece_backend([*BERT, "a", "b"], cased=False).encode("a", "b b")
    assert encoding.tokens == ["[CLS]", "a", "[SEP]", "b", "b", "[SEP]"]
    assert encoding.type_ids == [0, 0, 0, 1, 1, 1]


def test_roberta_pairs_have_two_separators_and_one_token_type() -> None:
    encoding = byte_bpe().encode("ab", "ab ab")
    assert encoding.tokens == ["<s>", "ab", "</s>", "</s>", "ab", "Ġab", "</s>"]
    assert encoding.type_ids == [0] * 7
    assert encoding.offsets[5] == (3, 5)  # without the space before it


def test_byte_bpe_decodes_to_the_original_text() -> None:
    backend = byte_bpe()
    text = " ab\n京 é  \U0001f600"
    assert backend.decode(backend.encode(text, add_special_tokens=False).ids) == text


def test_unigram_uses_the_most_probable_tokens_and_decodes_spaces() -> None:
    backend = unigram()
    encoding = backend.encode("ab  aab")
    assert encoding.tokens == ["[CLS]", "▁ab", "▁", "a", "a", "b", "[SEP]"]
    assert backend.decode(encoding.ids) == "ab aab"


def test_special_tokens_in_text_are_ordinary_text() -> None:
    wordpiece = wordpiece_backend([*BERT, "[", "]", "mask"], cased=False)
    assert wordpiece.encode("[MASK]", add_special_tokens=False).tokens == ["[", "mask", "]"]
    assert unigram().encode("ab[CLS]", add_special_tokens=False).tokens == ["▁ab", "[", "C", "L", "S", "]"]
    assert byte_bpe().encode("<s>", add_special_tokens=False).tokens == ["<", "s", ">"]


def test_special_tokens_are_registered_in_tokenizer_json() -> None:
    backend = wordpiece_backend([*BERT, "[", "]", "mask"], cased=False)
    reloaded = tokenizers.Tokenizer.from_str(backend.to_str())
    assert reloaded.encode("[MASK]", add_special_tokens=False).tokens == ["[MASK]"]


@pytest.mark.parametrize("name", list(KINDS))
def test_detect_kind_returns_the_kind_of_a_backend(name: str) -> None:
    kind = KINDS[name]
    tokens = (*kind.specials.order, "a")
    assert detect_kind(kind.build(Inventory(tokens, scores=(0.0,) * 6), cased=True)).name == name


def test_a_duplicate_token_is_rejected_with_its_line() -> None:
    with pytest.raises(InputError, match=r"line 8: token '##ing' appears twice \(first on line 6\)"):
        wordpiece_backend([*BERT, "##ing", "a", "##ing"], cased=False)


def test_a_vocabulary_without_special_tokens_is_rejected() -> None:
    with pytest.raises(InputError, match=r"lacks \[PAD\] \[MASK\]"):
        wordpiece_backend(["[UNK]", "[CLS]", "[SEP]", "a"], cased=False)


def test_an_unknown_kind_is_rejected_with_the_valid_ones() -> None:
    with pytest.raises(SettingsError, match="'wordpieces' is unknown; choose one of: wordpiece, bpe"):
        get_kind("wordpieces")
