"""Counted FLOPs of a training step, compared with a calculation by hand."""

import pytest
import torch

from bertworks.encoders.bert import Bert, BertConfig
from bertworks.objectives.causal import CausalLmModule
from bertworks.sampling.batch import Batch
from bertworks.training.flops import count_flops

pytestmark = pytest.mark.usefixtures("one_thread")


def make_batch(num_sequences: int, length: int, vocab_size: int) -> Batch:
    """Full sequences with a target at every position."""
    input_ids = torch.randint(1, vocab_size, (num_sequences, length), generator=torch.Generator().manual_seed(1))
    lengths, positions = torch.full((num_sequences,), length), torch.arange(num_sequences * length)
    return Batch(
        input_ids=input_ids,
        token_type_ids=torch.zeros_like(input_ids),
        lengths=lengths,
        attention=None,
        positions=positions,
        targets=input_ids.flatten(),
    )


@pytest.mark.parametrize("dropout", [0.1, 0.0])
def test_flops_of_a_one_layer_bert_by_hand(dropout: float):
    """N tokens in sequences of T; the last layer computes N + B outputs: the targets and the pooled positions.

    Keys and values of N tokens; queries, outputs and feed-forward network of N + B; attention of N + B to T; logits of
    N over V; the backward pass takes twice that. The pooler is computed, but gets no gradient.
    """
    vocab_size, hidden_size, intermediate_size, num_sequences, length = 60, 32, 64, 3, 16
    config = BertConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=intermediate_size,
        max_position_embeddings=32,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    module = CausalLmModule(Bert(config, torch.Generator().manual_seed(0)))
    num_tokens = num_sequences * length
    num_outputs = num_tokens + num_sequences
    attention = 4 * num_outputs * length * hidden_size
    linears = 4 * num_tokens * hidden_size**2 + 4 * num_outputs * hidden_size**2
    linears += 4 * num_outputs * hidden_size * intermediate_size
    logits = 2 * num_tokens * hidden_size * vocab_size
    expected = 3 * (linears + attention + logits) + 2 * num_sequences * hidden_size**2
    assert count_flops(module, [make_batch(num_sequences, length, vocab_size)]) == expected


def test_two_batches_take_twice_the_flops_and_nothing_is_changed():
    module = CausalLmModule(
        Bert(
            BertConfig(
                vocab_size=60,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=64,
                max_position_embeddings=32,
            ),
            torch.Generator().manual_seed(0),
        )
    ).eval()
    before = {name: values.clone() for name, values in module.state_dict().items()}
    batch = make_batch(2, 8, 60)
    assert count_flops(module, [batch, batch]) == 2 * count_flops(module, [batch])
    assert not module.training
    assert all(parameter.grad is None for parameter in module.parameters())
    assert all(values.equal(before[name]) for name, values in module.state_dict().items())
