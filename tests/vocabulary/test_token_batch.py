"""Batches of tokens: padding, masks, and calling, batching and decoding with a tokenizer."""

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
    assert [*batch.to_dict()] == ["input_ids", "token_type_ids", "attention_mask"]


def test_a_batch_needs_a_text(tokenizer: Tokenizer):
    with pytest.raises(InputError, match="there are no texts"):
        tokenizer.batch([])


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
