"""Why BERT masks tokens, shown by gradients: bidirectional attention sees the token to predict, unless it is masked.

T positions, D hidden size.
"""

import pytest
import torch
from torch import nn

from bertworks.encoders.bert import Bert, BertConfig
from bertworks.encoders.encoded import BatchLayout, SequenceGroup
from bertworks.encoders.layers import Attention
from bertworks.encoders.linear import apply_linear
from bertworks.sampling.batch import Batch

HIDDEN_SIZE, LENGTH = 8, 5
MASK, FIRST = 1, 2  # ids of [MASK] and of the first ordinary token
POSITION = 2  # the position to predict


def masking_itself(length: int) -> BatchLayout:
    """The layout of a sequence in which every position attends to all others, but not to itself."""
    diagonal = torch.eye(length, dtype=torch.bool)
    mask = torch.zeros(1, 1, length, length).masked_fill_(diagonal, float("-inf"))
    return BatchLayout(
        groups=(SequenceGroup(0, 1, length, mask),),
        starts=torch.tensor([0]),
        lengths=torch.tensor([length]),
        index=None,
        shape=(1, length),
    )


class AttentionStack(nn.Module):
    """Stacked attention without residual connections. Queries are made of positions alone, or also of the input.

    Keys and values come from the layer below. A query made of the token would leak it: what position t takes from the
    others would depend on the token at t.
    """

    def __init__(self, num_layers: int, length: int, position_queries: bool = True) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(num_layers)
        self.positions = nn.Parameter(torch.randn(length, HIDDEN_SIZE, generator=generator))
        self.layers = nn.ModuleList(Attention(HIDDEN_SIZE, 2, 0.0) for _ in range(num_layers))
        self.layout = masking_itself(length)
        self.position_queries = position_queries
        for parameter in self.layers.parameters():
            nn.init.normal_(parameter, 0.0, 0.3, generator=generator)  # small: no position takes all attention

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            query_key_value = apply_linear(x + self.positions, layer.query_key_value)  # (T, 3D)
            query_input = self.positions if self.position_queries else x + self.positions
            queries = apply_linear(query_input, layer.query_key_value)[:, :HIDDEN_SIZE]
            query_key_value = torch.cat([queries, query_key_value[:, HIDDEN_SIZE:]], 1)
            x = apply_linear(layer._attend(query_key_value, self.layout.groups[0], None), layer.out)
        return x


def jacobian(stack: AttentionStack, length: int, position: int) -> torch.Tensor:
    """Return (D, T, D): the gradient of each output value at `position` for each input value of every position."""
    tokens = torch.randn(length, HIDDEN_SIZE, generator=torch.Generator().manual_seed(0))
    result = torch.autograd.functional.jacobian(lambda x: stack(x)[position], tokens)
    assert isinstance(result, torch.Tensor)
    return result


@pytest.mark.parametrize("position", range(LENGTH))
def test_one_layer_that_masks_each_position_for_itself_cannot_see_its_token(position: int):
    gradient = jacobian(AttentionStack(1, LENGTH), LENGTH, position)
    assert torch.equal(gradient[:, position], torch.zeros(HIDDEN_SIZE, HIDDEN_SIZE))
    for other in set(range(LENGTH)) - {position}:
        assert float(gradient[:, other].abs().max()) > 1e-2


@pytest.mark.parametrize("num_layers", [2, 3, 4])
@pytest.mark.parametrize("position", range(LENGTH))
def test_two_or_more_layers_see_it_through_a_neighbor(num_layers: int, position: int):
    gradient = jacobian(AttentionStack(num_layers, LENGTH), LENGTH, position)
    assert float(gradient[:, position].abs().max()) > 1e-2


def test_with_two_positions_the_second_layer_sees_nothing_but_the_own_token():
    """Each position attends only to the other, with weight 1, so two steps lead back: (out @ value) twice."""
    stack = AttentionStack(2, 2)
    gradient = jacobian(stack, 2, 0)
    expected = torch.eye(HIDDEN_SIZE)
    for layer in stack.layers:
        expected = layer.out.weight @ layer.query_key_value.weight[2 * HIDDEN_SIZE :] @ expected
    assert torch.allclose(gradient[:, 0], expected, atol=1e-5)
    assert float(expected.detach().abs().max()) > 0.1
    assert torch.equal(gradient[:, 1], torch.zeros(HIDDEN_SIZE, HIDDEN_SIZE))


def test_a_query_made_of_the_token_lets_one_layer_see_it():
    gradient = jacobian(AttentionStack(1, LENGTH, position_queries=False), LENGTH, POSITION)
    assert float(gradient[:, POSITION].abs().max()) > 1e-2


def vocabulary_gradient(num_layers: int, token_ids: list[int], attention: str = "bidirectional") -> torch.Tensor:
    """Return (V,): the largest gradient of a BERT's last layer at POSITION for the embedding of each token."""
    config = BertConfig(
        vocab_size=FIRST + LENGTH,
        hidden_size=HIDDEN_SIZE,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=LENGTH,
        initializer_range=0.5,
    )
    bert = Bert(config, torch.Generator().manual_seed(num_layers)).eval()
    input_ids = torch.tensor([token_ids])
    vector = bert(
        Batch(
            input_ids=input_ids,
            token_type_ids=torch.zeros_like(input_ids),
            lengths=torch.tensor([LENGTH]),
            attention=attention,
        )
    ).gather(torch.tensor([POSITION]))
    vector[0, 0].backward()
    assert bert.token_embeddings.weight.grad is not None
    return bert.token_embeddings.weight.grad.abs().amax(1)


TOKENS = [FIRST + position for position in range(LENGTH)]  # every position has another token
NUM_LAYERS = pytest.mark.parametrize("num_layers", [1, 2, 6])


@NUM_LAYERS
def test_bert_sees_an_unmasked_token_with_any_number_of_layers(num_layers: int):
    gradient = vocabulary_gradient(num_layers, TOKENS)
    assert all(gradient[token] > 1e-3 for token in TOKENS)


@NUM_LAYERS
def test_bert_cannot_see_a_masked_token_and_still_attends_to_both_sides(num_layers: int):
    gradient = vocabulary_gradient(
        num_layers, [MASK if position == POSITION else token for position, token in enumerate(TOKENS)]
    )
    assert float(gradient[TOKENS[POSITION]]) == 0.0
    for position in set(range(LENGTH)) - {POSITION}:
        assert gradient[TOKENS[position]] > 1e-3


@NUM_LAYERS
def test_causal_attention_sees_nothing_to_the_right(num_layers: int):
    """The other solution: POSITION predicts the next token, and nothing to the right is attended to, masked or not."""
    gradient = vocabulary_gradient(num_layers, TOKENS, "causal")
    assert torch.equal(gradient[TOKENS[POSITION + 1 :]], torch.zeros(LENGTH - POSITION - 1))
    assert all(gradient[token] > 1e-3 for token in TOKENS[: POSITION + 1])
