"""Files beside a vocabulary that its tokens depend on: added tokens and settings, as in transformers."""

import json
from pathlib import Path

import pytest
import transformers
from tokenizers import pre_tokenizers

from bertworks.errors import InputError
from bertworks.vocabulary.algorithms import KINDS, Inventory, wordpiece_backend
from bertworks.vocabulary.tokenizer import Tokenizer
from bertworks.vocabulary.vocabulary_files import find_vocabulary

TOKENS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "cat",
    "<",
    ">",
    "e",
    "##1",
    "cafe",
    "café",
    "我",
    "##我",
]


def write(folder: Path, added: dict[str, int] | None = None, **settings: object) -> Path:
    (folder / "vocab.txt").write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if added is not None:
        (folder / "added_tokens.json").write_text(json.dumps(added))
    return folder


def test_added_tokens_beside_a_vocab_txt_are_one_token(tmp_path: Path):
    marker = {"content": "<e1>", "special": True, "normalized": False, "lstrip": False, "rstrip": False}
    by_config = Tokenizer.load(write(tmp_path, added_tokens_decoder={str(len(TOKENS)): marker}, do_lower_case=True))
    assert by_config.encode("the <e1>cat").tokens == ("[CLS]", "the", "<e1>", "cat", "[SEP]")
    by_file = Tokenizer.load(write(tmp_path, added={"<e1>": len(TOKENS)}, do_lower_case=True))
    assert by_file.encode("the <e1>cat").input_ids == by_config.encode("the <e1>cat").input_ids


def test_an_added_token_with_another_id_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"the added token '<e1>' should have id 99, but would have 15"):
        Tokenizer.load(write(tmp_path, added={"<e1>": 99}))


@pytest.mark.parametrize(
    "settings", [{}, {"strip_accents": False}, {"tokenize_chinese_chars": False}, {"do_lower_case": False}]
)
def test_settings_of_a_vocab_txt_are_those_of_transformers(settings: dict[str, bool], tmp_path: Path):
    vocab = {token: index for index, token in enumerate(TOKENS)}
    theirs = transformers.BertTokenizer(vocab=vocab, **{"do_lower_case": True, **settings})
    ours = Tokenizer.load(write(tmp_path, **{"do_lower_case": True, **settings}))
    for text in ("the Café", "café", "cat我我", "THE cat"):
        assert list(ours.encode(text).input_ids) == theirs(text)["input_ids"], text


def test_a_tokenizer_json_is_preferred(tmp_path: Path):
    assert find_vocabulary(tmp_path) is None
    write(tmp_path)
    assert find_vocabulary(tmp_path) == tmp_path / "vocab.txt"
    Tokenizer.load(tmp_path).save(tmp_path)
    assert find_vocabulary(tmp_path) == tmp_path / "tokenizer.json"


BERT_NAMES = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), TOKENS, strict=False))


@pytest.mark.parametrize("cased", [True, False])
@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("bert", {"tokenizer_class": "BertTokenizer", "do_lower_case": False}),
        ("bert", {"tokenizer_class": "BertTokenizerFast", "do_lower_case": True}),
        ("bert", {"tokenizer_class": "BertTokenizer"}),
        ("bert", {"tokenizer_class": "BertTokenizer", "strip_accents": False}),
        ("bert", {"tokenizer_class": "BertTokenizer", "tokenize_chinese_chars": False}),
        ("bert", {"do_lower_case": False}),
        ("bert", {"do_lower_case": True}),
        ("bert", {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True}),
        ("distilbert", {"tokenizer_class": "DistilBertTokenizer", "do_lower_case": False}),
        ("electra", {"tokenizer_class": "ElectraTokenizer", "do_lower_case": False}),
    ],
)
def test_settings_of_a_class_count_before_tokenizer_json(
    cased: bool, model_type: str, settings: dict[str, object], tmp_path: Path
):
    wordpiece_backend(TOKENS, cased).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**BERT_NAMES, **settings}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), Tokenizer.load(tmp_path)
    for text in ("the Café", "café", "cat我我", "THE cat"):
        assert list(ours.encode(text).input_ids) == theirs(text)["input_ids"], text


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("settings", [{"add_prefix_space": True}, {"add_prefix_space": False}, {}])
def test_the_prefix_space_of_robertas_class_counts_before_tokenizer_json(
    stored: bool, settings: dict[str, bool], tmp_path: Path
):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inventory = Inventory(("<s>", "<pad>", "</s>", "<unk>", "<mask>", *alphabet))
    backend = KINDS["byte-bpe"].build(inventory, cased=True)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=stored)
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RobertaTokenizer", **settings}))
    (tmp_path / "config.json").write_text('{"model_type": "roberta"}')
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), Tokenizer.load(tmp_path)
    assert list(ours.encode("the cat").input_ids) == theirs("the cat")["input_ids"]


@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json"])
def test_a_vocab_txt_of_a_tokenizer_that_finds_other_words_is_refused(file: str, tmp_path: Path):
    write(tmp_path)
    (tmp_path / file).write_text(json.dumps({"tokenizer_class": "BertJapaneseTokenizer"}))
    with pytest.raises(InputError, match=r"vocab\.txt belongs to a BertJapaneseTokenizer of transformers"):
        Tokenizer.load(tmp_path)


def test_merges_of_a_tokenizer_with_other_special_tokens_are_refused(tmp_path: Path):
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    with pytest.raises(InputError, match=r"vocab\.json belongs to a GPT2Tokenizer of transformers"):
        Tokenizer.load(tmp_path)
