"""vocab.json with merges.txt gives the tokens of transformers; damaged files are refused."""

import json
from pathlib import Path

import pytest
import tokenizers
import transformers

from bertworks.errors import FolderError, InputError
from bertworks.vocabulary.tokenizer import Tokenizer

BYTES = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", *BYTES, "Ġc", "at", "Ġcat", "<mask>"]
ROBERTA_MERGES = ["#version: 0.2", "Ġ c", "a t", "Ġc at"]
LETTERS = "abcdeht"
GPT = ["<unk>", *LETTERS, *(f"{letter}</w>" for letter in LETTERS), "th", "the</w>"]
GPT_MERGES = ["#version: 0.2", "t h", "th e</w>"]
TEXTS = ["cat cat", " the cat", "The cat's 猫 <mask>", "", "a  b"]


def write(folder: Path, tokens: list[str], merges: list[str]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("\n".join(merges) + "\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("add_prefix_space", [False, True])
def test_robertas_files_give_the_tokens_of_transformers(add_prefix_space: bool, tmp_path: Path):
    folder = write(tmp_path, ROBERTA, ROBERTA_MERGES)
    (folder / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": add_prefix_space}))
    theirs = transformers.RobertaTokenizer(
        vocab={token: index for index, token in enumerate(ROBERTA)},
        merges=[tuple(line.split()) for line in ROBERTA_MERGES[1:]],
        add_prefix_space=add_prefix_space,
    )
    ours = Tokenizer.load(folder, split_special_tokens=False)
    for text in TEXTS[:2] + TEXTS[3:]:
        assert list(ours.encode(text).input_ids) == theirs(text)["input_ids"]
    assert list(ours.encode("cat", "cat cat").input_ids) == theirs("cat", "cat cat")["input_ids"]
    assert ours.kind == "byte-bpe"


def test_the_files_of_gpt_give_the_tokens_of_transformers(tmp_path: Path):
    theirs = transformers.OpenAIGPTTokenizer(
        vocab={token: index for index, token in enumerate(GPT)}, merges=[tuple(line.split()) for line in GPT_MERGES[1:]]
    )
    ours = Tokenizer.load(write(tmp_path, GPT, GPT_MERGES))
    for text in TEXTS:
        assert ours.tokenize(text).input_ids.tolist() == theirs(text)["input_ids"]
    assert ours.tokens[len(GPT) :] == ("[PAD]", "[CLS]", "[SEP]", "[MASK]")


def test_added_tokens_of_gpt_have_the_ids_after_its_vocabulary(tmp_path: Path):
    write(tmp_path, GPT, GPT_MERGES)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"_start_": len(GPT)}))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.tokenize("_start_ the").input_ids.tolist() == [len(GPT), GPT.index("the</w>")]
    assert tokenizer.tokens[len(GPT) :] == ("_start_", "[PAD]", "[CLS]", "[SEP]", "[MASK]")


def test_special_tokens_that_were_added_to_gpt_are_not_put_around_texts(tmp_path: Path):
    added = {token: len(GPT) + index for index, token in enumerate(("[PAD]", "[CLS]", "[SEP]"))}
    write(tmp_path, GPT, GPT_MERGES)
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    (tmp_path / "config.json").write_text('{"model_type": "openai-gpt"}')
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert list(Tokenizer.load(tmp_path).encode("the").input_ids) == peer("the")["input_ids"]


@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json"])
def test_the_files_of_herbert_are_cased_and_have_special_tokens(file: str, tmp_path: Path):
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *GPT[1:], "T", "Th", "The</w>"]
    merges = [*GPT_MERGES, "T h", "Th e</w>"]
    theirs = transformers.HerbertTokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[tuple(line.split()) for line in merges[1:]],
    )
    folder = write(tmp_path, tokens, merges)
    (folder / file).write_text(json.dumps({"tokenizer_class": "HerbertTokenizer"}))
    ours = Tokenizer.load(folder, split_special_tokens=False)
    assert ours.encode("The the").tokens == ("<s>", "The</w>", "the</w>", "</s>")
    for text in TEXTS:
        assert list(ours.encode(text).input_ids) == theirs(text)["input_ids"]
    assert list(ours.encode("The", "a the").input_ids) == theirs("The", "a the")["input_ids"]


@pytest.mark.parametrize(
    ("tokens", "merges", "message"),
    [
        (ROBERTA, ["a b c"], r"merges\.txt, line 1: a merge is two tokens"),
        (ROBERTA, ["x y"], r"merges 'xy', which .*vocab\.json lacks"),
    ],
)
def test_damaged_files_are_refused(tokens: list[str], merges: list[str], message: str, tmp_path: Path):
    with pytest.raises(InputError, match=message):
        Tokenizer.load(write(tmp_path, tokens, merges))


def test_a_missing_merges_txt_and_other_json_are_refused(tmp_path: Path):
    folder = write(tmp_path, ROBERTA, ROBERTA_MERGES)
    (folder / "merges.txt").unlink()
    with pytest.raises(InputError, match=r"has a vocab\.json, but no merges\.txt"):
        Tokenizer.load(folder)
    (folder / "merges.txt").write_text("")
    (folder / "vocab.json").write_text('{"a": 0, "b": 2}')
    with pytest.raises(InputError, match="from 0 without gaps"):
        Tokenizer.load(folder)
    (folder / "vocab.json").write_text("{")
    with pytest.raises(InputError, match="is not valid JSON"):
        Tokenizer.load(folder)


@pytest.mark.parametrize(
    "content", ['{"cls_token": "\\ud800"}', '{"added_tokens_decoder": {"9": {"content": "\\ud800"}}}']
)
def test_half_a_surrogate_pair_is_no_token(tmp_path: Path, content: str):
    folder = write(tmp_path, ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "a"], [])
    (folder / "tokenizer_config.json").write_text(content)
    with pytest.raises(FolderError, match=r"tokenizer_config\.json is not valid JSON: .*surrogates not allowed"):
        Tokenizer.load(folder)
