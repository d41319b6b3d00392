"""Batches of tokens: padding, masks, and calling, batching and decoding with a tokenizer."""

from typing import Any

import numpy as np
import pytest

from bertworks.errors import InputError
from bertworks.vocabulary.tokenizer import Tokenizer


def test_a_batch_is_padded_to_its_longest_sequence(tokenizer: Tokenizer):
    batch = tokenizer.batch(["w0 w1", "w2"], ["w3", "w4"])
    first, second = tokenizer(["w0 w1", "w2"], ["w3", "w4"])
    pad = tokenizer.specials.pad
    assert batch.input_ids.tolist() == [[*first.input_ids], [*second.input_ids, pad]]
    assert batch.token_type_ids.tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 0]]
    assert batch.attention_mask.tolist() == [[1] * 6, [1] * 5 + [0]]
    assert (len(batch), repr(batch)) == (2, "TokenBatch(2 sequences of up to 6 tokens)")
    assert [*batch.to_dict()] == [*{**batch}] == ["input_ids", "token_type_ids", "attention_mask"]
    assert [(name, values.shape) for name, values in batch.items()] == [(name, (2, 6)) for name in batch]
    assert batch["input_ids"] is batch.input_ids
    with pytest.raises(KeyError, match="labels"):
        batch["labels"]


def test_a_batch_needs_a_text(tokenizer: Tokenizer):
    with pytest.raises(InputError, match="there are no texts"):
        tokenizer.batch([])


def test_a_batch_takes_pairs_as_tuples(tokenizer: Tokenizer):
    batch = tokenizer.batch([("w0 w1", "w3"), ("w2", "w4")])
    assert batch.to_dict()["input_ids"].tolist() == tokenizer.batch(["w0 w1", "w2"], ["w3", "w4"]).input_ids.tolist()
    assert tokenizer(("w0", "w1")) == tokenizer([("w0", "w1")])[0] == tokenizer("w0", "w1")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("w0 w1", "a single text was given instead of several"),
        (None, "the input is None; give a text or a list of texts"),
        (["w0", None], "text 0 is None, not a text"),
        ([("w0", "w1", "w2")], "give a text or a pair of texts"),
        ([("w0", 2)], "text 1 is 2, not a text"),
    ],
)
def test_a_batch_of_something_else_is_refused(tokenizer: Tokenizer, texts: Any, message: str):
    with pytest.raises(InputError, match=message):
        tokenizer.batch(texts)


def test_texts_and_pairs_of_different_numbers_are_refused(tokenizer: Tokenizer):
    with pytest.raises(InputError, match="there are 2 texts and 1 pairs; give one pair for each text"):
        tokenizer(["w0", "w1"], ["w2"])


@pytest.mark.parametrize("ids", ["abc", 5, None, [1.5], [[1, 2]], np.ones((2, 2), dtype=np.int64)])
def test_only_integers_are_decoded(tokenizer: Tokenizer, ids: Any):
    with pytest.raises(InputError, match=r"the token ids are .*; give a list of integers: those of one text"):
        tokenizer.decode(ids)


def test_decoded_chinese_has_no_spaces_between_its_characters():
    tokenizer = Tokenizer.load("zh-small")
    assert tokenizer.decode(tokenizer("《房间》很干净，还有 wifi 可用！").input_ids) == "《房间》很干净，还有wifi可用！"
    assert tokenizer.decode(tokenizer("I was there").input_ids) == "i was there"


def test_a_tokenizer_is_called_with_a_text_or_a_list(tokenizer: Tokenizer):
    assert tokenizer("w0", "w1") == tokenizer.encode("w0", "w1")
    assert tokenizer(["w0", "w1"]) == [tokenizer.encode("w0"), tokenizer.encode("w1")]


def test_decode_inverts_encode(tokenizer: Tokenizer):
    encoding = tokenizer("w0a w1")
    assert encoding.tokens == ("[CLS]", "w0", "##a", "w1", "[SEP]")
    assert tokenizer.decode(encoding.input_ids) == "w0a w1"
    assert tokenizer.decode(np.array(encoding.input_ids), skip_special_tokens=False) == "[CLS] w0a w1 [SEP]"
    with pytest.raises(InputError, match="the token ids must be from 0 to"):
        tokenizer.decode([10**6])


def test_the_repr_tells_kind_and_size(tokenizer: Tokenizer):
    assert repr(tokenizer) == f"Tokenizer(wordpiece, uncased, {tokenizer.vocab_size:,} tokens)"
