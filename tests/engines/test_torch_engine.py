"""The torch engine: results are in the order of the input, and do not depend on batching."""

import pytest
import torch

from bertworks.encoders.bert import Bert, BertConfig
from bertworks.engines.torch_engine import EncodedBatch, TorchEngine
from bertworks.vocabulary.tokenizer import Encoding, Tokenizer

LENGTHS = (3, 11, 1, 7, 7, 2, 11, 0, 5, 7)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def encoder(tokenizer: Tokenizer) -> Bert:
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        initializer_range=0.2,
    )
    return Bert(config, torch.Generator().manual_seed(0)).eval()


@pytest.fixture(scope="module")
def sequences(tokenizer: Tokenizer) -> list[Encoding]:
    return [
        tokenizer.encode(" ".join(f"w{10 * index + word}" for word in range(length)))
        for index, length in enumerate(LENGTHS)
    ]


def last_hidden_states(batch: EncodedBatch[Encoding]) -> list[torch.Tensor]:
    starts = batch.output.layout.starts.tolist()
    return [
        batch.output.last_hidden_state[start : start + len(sequence)]
        for start, sequence in zip(starts, batch.sequences, strict=True)
    ]


def encode_alone(encoder: Bert, tokenizer: Tokenizer, sequence: Encoding) -> torch.Tensor:
    (hidden_states,) = TorchEngine(encoder, tokenizer).predict([sequence], last_hidden_states)
    return hidden_states


def test_predictions_are_in_the_order_of_the_input(encoder: Bert, tokenizer: Tokenizer, sequences: list[Encoding]):
    engine = TorchEngine(encoder, tokenizer, budget=12, window=4)
    assert list(engine.predict(sequences, lambda batch: batch.sequences)) == sequences


@pytest.mark.parametrize(("budget", "window"), [(1, 100), (16, 3), (64, 100), (10_000, 100)])
def test_budget_window_and_padding_do_not_change_hidden_states(
    encoder: Bert, tokenizer: Tokenizer, sequences: list[Encoding], budget: int, window: int
):
    results = list(TorchEngine(encoder, tokenizer, budget, window).predict(sequences, last_hidden_states))
    for sequence, values in zip(sequences, results, strict=True):
        assert values.shape == (len(sequence), 16)
        torch.testing.assert_close(values, encode_alone(encoder, tokenizer, sequence), rtol=0, atol=1e-6)


def test_batches_keep_the_budget_and_have_the_indices_of_their_sequences(
    encoder: Bert, tokenizer: Tokenizer, sequences: list[Encoding]
):
    batches = list(TorchEngine(encoder, tokenizer, budget=26).encode(sequences))
    # with two special tokens: 13 13 | 9 9 | 9 7 5 4 | 3 2, and 9 + 9 + 9 would be 27
    assert [batch.indices for batch in batches] == [(1, 6), (3, 4), (9, 8, 0, 5), (2, 7)]
    assert all(
        sequences[index] is sequence
        for batch in batches
        for index, sequence in zip(batch.indices, batch.sequences, strict=True)
    )


def test_inference_mode_does_not_leak_to_the_caller(encoder: Bert, tokenizer: Tokenizer, sequences: list[Encoding]):
    for batch in TorchEngine(encoder, tokenizer).encode(sequences):
        assert not batch.output.last_hidden_state.requires_grad
        assert not torch.is_inference_mode_enabled()
        assert torch.is_grad_enabled()


def test_no_sequences_give_no_predictions(encoder: Bert, tokenizer: Tokenizer):
    assert list(TorchEngine(encoder, tokenizer).predict([], last_hidden_states)) == []
