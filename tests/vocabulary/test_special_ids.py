"""Special tokens of a vocabulary: token types as transformers gives them to a model."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from bertworks.errors import InputError
from bertworks.sampling.masking import Masker
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.tokenizer import Tokenizer

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]
WITHOUT_TYPES = ["input_ids", "attention_mask"]


def write(folder: Path, settings: dict[str, Any]) -> Path:
    wordpiece_backend(TOKENS, cased=False).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text('{"model_type": "bert"}')
    return folder


@pytest.mark.parametrize(
    "settings",
    [
        {"tokenizer_class": "BertTokenizer"},
        {"tokenizer_class": "BertTokenizer", "model_input_names": WITHOUT_TYPES},
        {"tokenizer_class": "TokenizersBackend"},
        {"tokenizer_class": "TokenizersBackend", "model_input_names": [*WITHOUT_TYPES, "token_type_ids"]},
        {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": WITHOUT_TYPES},
        {"tokenizer_class": "DistilBertTokenizer"},
        {"model_input_names": WITHOUT_TYPES},
        {},
    ],
)
def test_token_types_are_0_where_transformers_returns_none(tmp_path: Path, settings: dict[str, Any]):
    folder = write(tmp_path, settings)
    peer = transformers.AutoTokenizer.from_pretrained(folder)("a", "b")
    expected = peer.get("token_type_ids", [0] * len(peer["input_ids"]))
    tokenizer = Tokenizer.load(folder)
    assert list(tokenizer.encode("a", "b").token_type_ids) == expected
    tokenizer.save(tmp_path / "saved")
    assert list(Tokenizer.load(tmp_path / "saved").encode("a", "b").token_type_ids) == expected
    saved = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")("a", "b")
    assert saved.get("token_type_ids", [0] * len(expected)) == expected


def test_a_vocabulary_without_a_mask_token_is_read_but_cannot_mask(tmp_path: Path):
    state = json.loads(wordpiece_backend(TOKENS, cased=False).to_str())
    vocabulary = {token if token != "[MASK]" else "mask": index for token, index in state["model"]["vocab"].items()}
    added = [token for token in state["added_tokens"] if token["content"] != "[MASK]"]
    state = {**state, "model": {**state["model"], "vocab": vocabulary}, "added_tokens": added}
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("a", "b").input_ids == (2, 5, 3, 6, 3)
    with pytest.raises(InputError, match=r"no \[MASK\] or <mask> token, which masking needs"):
        Masker(tokenizer)
