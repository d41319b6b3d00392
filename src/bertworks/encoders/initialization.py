"""Where an encoder's weights begin, when not at random alone: an encoder in, the same with a head start out.

A masked piece can only be told from its neighbours, and BERT has to find out where these stand: its positions and its
attention begin at random, so that each place reads all others alike. A run of hours spends most of its time on that.
Here positions begin as waves, in which a step to the left or right is a rotation; and the heads of the first layers
begin with that rotation, each looking at one neighbour and handing its piece on. The fastest waves have the first d
numbers of a vector to themselves: pieces and segments begin with zeros there. All of it goes on being learned.

D width, H heads, d = D / H.
"""

from __future__ import annotations

import math

import torch

from bertworks.encoders.bert import Bert
from bertworks.encoders.layers import Layer

# How many layers begin with a look at neighbours.
_NUM_LAYERS = 2
# By how much the score of the neighbour in question stands above that of places far away: e to the power of it is a
# share of about a half among a hundred places.
_SCORE_MARGIN = 5.3
# How much of a neighbour's piece a head hands on: the spread of its values, and again of the product behind them.
_VALUE_GAIN = 0.7


def scaled_sinusoidal_positions(num_positions: int, hidden_size: int, initializer_range: float) -> torch.Tensor:
    """Return (positions, D): sines and cosines of the Transformer, as widely spread as drawn weights would be."""
    angles = torch.arange(num_positions)[:, None] * _frequencies(hidden_size)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :hidden_size] * (
        initializer_range * math.sqrt(2)
    )


@torch.no_grad()
def init_sinusoidal_positions(encoder: Bert) -> None:
    """Let the learned positions begin as waves."""
    sizes = encoder.config
    encoder.position_embeddings.weight[sizes.first_position :].copy_(
        scaled_sinusoidal_positions(sizes.max_position_embeddings, sizes.hidden_size, sizes.initializer_range)
    )


@torch.no_grad()
def init_neighbor_attention(encoder: Bert, generator: torch.Generator | None = None) -> None:
    """Let each head of the first layers begin with a look at one neighbour: 1 to the left, 1 to the right, 2 to the
    left, and so on. Positions have to be waves."""
    sizes = encoder.config
    width, depth = sizes.hidden_size, sizes.hidden_size // sizes.num_attention_heads
    for table in (encoder.token_embeddings, encoder.token_type_embeddings):
        table.weight[:, :depth] = 0.0
    # After the first norm: of D numbers, d hold the position alone, the others the sum of three embeddings.
    variance = (depth + 3 * (width - depth)) / width
    strength = math.sqrt(_SCORE_MARGIN * variance / math.sqrt(depth))
    for number, layer in enumerate(list(encoder.layers)[:_NUM_LAYERS]):
        assert isinstance(layer, Layer)
        attention = layer.attention
        queries, keys, values = attention.query_key_value.weight.view(3, sizes.num_attention_heads, depth, width)
        for head in range(sizes.num_attention_heads):
            away = 1 + head // 2 + number * (sizes.num_attention_heads + 1) // 2
            queries[head, :, :depth] += strength * _position_rotation(away if head % 2 else -away, depth, width)
            keys[head, :, :depth] += strength * torch.eye(depth)
        values[..., depth:].normal_(0.0, _VALUE_GAIN / math.sqrt(width - depth), generator=generator)
        attention.out.weight.normal_(0.0, _VALUE_GAIN / math.sqrt(width), generator=generator)


def _frequencies(hidden_size: int) -> torch.Tensor:
    return 10_000 ** (-torch.arange(0, hidden_size, 2) / hidden_size)


def _position_rotation(offset: int, head_size: int, hidden_size: int) -> torch.Tensor:
    """Return (d, d): the rotation that turns the fastest waves of a place into those of the place `offset` away."""
    angles = offset * _frequencies(hidden_size)[: (head_size + 1) // 2]
    rotation = torch.zeros(head_size + head_size % 2, head_size + head_size % 2)
    even = torch.arange(0, len(rotation), 2)
    rotation[even, even] = rotation[even + 1, even + 1] = angles.cos()
    rotation[even, even + 1] = angles.sin()
    rotation[even + 1, even] = -angles.sin()
    return rotation[:head_size, :head_size]
