"""The torch engine: rows come back in their order, and neither neighbours nor budgets change what becomes of them."""

import pytest
import torch

from bertworks.encoders.bert import Bert, BertConfig
from bertworks.engines.torch_engine import EncodedBatch, TorchEngine
from bertworks.vocabulary.tokenizer import Encoding, Tokenizer

LENGTHS = (3, 11, 1, 7, 7, 2, 11, 0, 5, 7)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def encoder(tokenizer: Tokenizer) -> Bert:
    sizes = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        initializer_range=0.2,
    )
    return Bert(sizes, torch.Generator().manual_seed(0)).eval()


@pytest.fixture(scope="module")
def rows(tokenizer: Tokenizer) -> list[Encoding]:
    return [tokenizer.encode(" ".join(f"w{10 * row + word}" for word in range(num))) for row, num in enumerate(LENGTHS)]


def last_layer(found: EncodedBatch[Encoding]) -> list[torch.Tensor]:
    starts = found.output.layout.starts.tolist()
    return [
        found.output.last_hidden_state[start : start + len(row)]
        for start, row in zip(starts, found.sequences, strict=True)
    ]


def alone(encoder: Bert, tokenizer: Tokenizer, row: Encoding) -> torch.Tensor:
    (found,) = TorchEngine(encoder, tokenizer).predict([row], last_layer)
    return found


def test_answers_come_in_the_order_of_the_rows(encoder: Bert, tokenizer: Tokenizer, rows: list[Encoding]):
    engine = TorchEngine(encoder, tokenizer, budget=12, window=4)
    assert [row.input_ids for row in engine.predict(rows, lambda found: found.sequences)] == [
        row.input_ids for row in rows
    ]


@pytest.mark.parametrize(("budget", "window"), [(1, 100), (16, 3), (64, 100), (10_000, 100)])
def test_neither_budget_nor_neighbours_nor_padding_change_a_row(
    encoder: Bert, tokenizer: Tokenizer, rows: list[Encoding], budget: int, window: int
):
    found = list(TorchEngine(encoder, tokenizer, budget, window).predict(rows, last_layer))
    for row, values in zip(rows, found, strict=True):
        assert values.shape == (len(row), 16)
        torch.testing.assert_close(values, alone(encoder, tokenizer, row), rtol=0, atol=1e-6)


def test_batches_keep_the_budget_and_name_their_rows(encoder: Bert, tokenizer: Tokenizer, rows: list[Encoding]):
    batches = list(TorchEngine(encoder, tokenizer, budget=26).encode(rows))
    # with two special pieces: 13 13 | 9 9 | 9 7 5 4 | 3 2, and 9 + 9 + 9 would be 27
    assert [found.indices for found in batches] == [(1, 6), (3, 4), (9, 8, 0, 5), (2, 7)]
    assert all(
        rows[number] is row for found in batches for number, row in zip(found.indices, found.sequences, strict=True)
    )


def test_nothing_is_kept_for_gradients_and_the_caller_is_left_alone(
    encoder: Bert, tokenizer: Tokenizer, rows: list[Encoding]
):
    for found in TorchEngine(encoder, tokenizer).encode(rows):
        assert not found.output.last_hidden_state.requires_grad
        assert not torch.is_inference_mode_enabled()
        assert torch.is_grad_enabled()


def test_no_rows_give_no_answers(encoder: Bert, tokenizer: Tokenizer):
    assert list(TorchEngine(encoder, tokenizer).predict([], last_layer)) == []
