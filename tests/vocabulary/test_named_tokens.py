"""Tokens named beside a vocabulary: the same tokens as transformers, whichever file names them."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from bertworks.errors import InputError
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.tokenizer import Tokenizer

VOCABULARY = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "[unused1]",
    "a",
    "cat",
    "un",
    "##us",
    "[",
    "]",
    "1",
    "[E1]",
]
UNUSED_ID = VOCABULARY.index("[unused1]")
TEXTS = ["a [unused1] cat", "[unused1]cat", "a [E1] cat", "a <e2> cat", "a [MASK] cat [SEP]", "a <E2>", "a [X]cat [x]"]
LOWER_CASE = {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}
UNUSED = {"content": "[unused1]", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def write_files(folder: Path, vocabulary_file: str, files: dict[str, Any], model_type: str = "bert") -> Path:
    """Write a vocabulary that marks no token as special but the five of BERT, or none, and files beside it."""
    if vocabulary_file == "vocab.txt":
        (folder / vocabulary_file).write_text("\n".join(VOCABULARY) + "\n")
    else:
        state = json.loads(wordpiece_backend(VOCABULARY, cased=False).to_str())
        (folder / vocabulary_file).write_text(json.dumps({**state, "added_tokens": []}))
    for name, content in {"config.json": {"model_type": model_type}, **files}.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("vocabulary_file", ["vocab.txt", "tokenizer.json"])
@pytest.mark.parametrize(
    "files",
    [
        {"special_tokens_map.json": {"additional_special_tokens": ["[unused1]"]}},
        {"special_tokens_map.json": {"extra_special_tokens": [UNUSED]}, "tokenizer_config.json": LOWER_CASE},
        {"special_tokens_map.json": {"mask_token": {**UNUSED, "content": "[MASK]", "lstrip": True}}},
        {"tokenizer_config.json": {**LOWER_CASE, "additional_special_tokens": ["[unused1]", "[E1]"]}},
        {"tokenizer_config.json": {**LOWER_CASE, "extra_special_tokens": ["[unused1]", "<e2>"]}},
        {"tokenizer_config.json": {**LOWER_CASE, "extra_special_tokens": {"entity_token": "[E1]"}}},
        {
            "tokenizer_config.json": {
                **LOWER_CASE,
                "added_tokens_decoder": {str(UNUSED_ID): {**UNUSED, "special": True}},
            }
        },
        {"added_tokens.json": {"<e2>": len(VOCABULARY)}, "tokenizer_config.json": LOWER_CASE},
        {"added_tokens.json": {"<e2>": len(VOCABULARY)}, "special_tokens_map.json": {"mask_token": "<e2>"}},
        {"added_tokens.json": {"[X]": len(VOCABULARY)}, "tokenizer_config.json": LOWER_CASE},
        {
            "added_tokens.json": {"[X]": len(VOCABULARY)},
            "special_tokens_map.json": {"additional_special_tokens": ["[X]"]},
        },
        {
            "added_tokens.json": {"[X]": len(VOCABULARY)},
            "tokenizer_config.json": {**LOWER_CASE, "additional_special_tokens": ["[X]"]},
        },
        {  # one list of special tokens or the other
            "tokenizer_config.json": {
                **LOWER_CASE,
                "extra_special_tokens": ["[unused1]"],
                "additional_special_tokens": ["[E1]"],
            },
        },
        {
            "tokenizer_config.json": {**LOWER_CASE, "extra_special_tokens": {"entity_token": "[unused1]"}},
            "special_tokens_map.json": {"additional_special_tokens": ["[E1]"]},
        },
        {
            "tokenizer_config.json": {**LOWER_CASE, "extra_special_tokens": ["[unused1]"]},
            "special_tokens_map.json": {"additional_special_tokens": ["[E1]"]},
        },
        {  # the older files do not count beside added_tokens_decoder
            "tokenizer_config.json": {**LOWER_CASE, "added_tokens_decoder": {}},
            "special_tokens_map.json": {"additional_special_tokens": ["[unused1]"]},
            "added_tokens.json": {"<e2>": len(VOCABULARY)},
        },
    ],
)
def test_named_tokens_are_those_of_transformers(tmp_path: Path, vocabulary_file: str, files: dict[str, Any]):
    _assert_parity(write_files(tmp_path, vocabulary_file, files))


def _assert_parity(folder: Path) -> None:
    peer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer = Tokenizer.load(folder, split_special_tokens=False)
    for text in TEXTS:
        assert list(tokenizer.encode(text).input_ids) == peer(text)["input_ids"], text


@pytest.mark.parametrize(
    "files",
    [
        {"special_tokens_map.json": {"cls_token": "[unused1]", "mask_token": {**UNUSED, "content": "[MASK]"}}},
        {"added_tokens.json": {"<e2>": len(VOCABULARY)}, "special_tokens_map.json": {"sep_token": "<e2>"}},
    ],
)
def test_the_tokens_of_the_layout_of_a_vocab_txt_are_the_named_ones(tmp_path: Path, files: dict[str, Any]):
    _assert_parity(write_files(tmp_path, "vocab.txt", files))


@pytest.mark.parametrize("key", ["additional_special_tokens", "extra_special_tokens"])
def test_a_token_beyond_the_embeddings_is_not_added(tmp_path: Path, key: str):
    config = {"model_type": "bert", "vocab_size": len(VOCABULARY)}
    files = {"tokenizer_config.json": {**LOWER_CASE, key: ["<e2>"]}, "config.json": config}
    assert Tokenizer.load(write_files(tmp_path, "tokenizer.json", files)).vocab_size == len(VOCABULARY)


@pytest.mark.parametrize("vocabulary_file", ["vocab.txt", "tokenizer.json"])
def test_an_added_token_with_another_id_is_refused(tmp_path: Path, vocabulary_file: str):
    folder = write_files(tmp_path, vocabulary_file, {"added_tokens.json": {"<e2>": 99}})
    with pytest.raises(InputError, match=f"'<e2>' should have id 99, but would have {len(VOCABULARY)}"):
        Tokenizer.load(folder)


MPNET = ["<s>", "<pad>", "</s>", "<unk>", *VOCABULARY, "<mask>"]


@pytest.mark.parametrize("settings", [{}, {"tokenizer_class": "MPNetTokenizer"}, {"do_lower_case": True}])
def test_a_vocab_txt_of_mpnet_has_its_own_special_tokens(tmp_path: Path, settings: dict[str, Any]):
    (tmp_path / "vocab.txt").write_text("\n".join(MPNET) + "\n")
    (tmp_path / "config.json").write_text('{"model_type": "mpnet"}')
    if settings:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokenizer = Tokenizer.load(tmp_path, split_special_tokens=False)
    for text in ["a cat", "a <mask> cat", "[CLS] a [1]"]:
        assert list(tokenizer.encode(text).input_ids) == peer(text)["input_ids"], text
    assert list(tokenizer.encode("a", "cat").input_ids) == peer("a", "cat")["input_ids"]
    specials = tokenizer.specials
    names = [MPNET[token_id] for token_id in specials.ids]
    assert names == ["<pad>", "[UNK]", "<s>", "</s>", "<mask>"]
